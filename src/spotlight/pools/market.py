"""The spot market of a run over any pool: nodes come and go as a trace says, and others stand in for who stays away.

Tasks of the controller's event loop, not processes of their own: the pool is the parent of the agents, so only it can
kill them without ever hitting a reused pid, and a market that outlives its run cannot exist. What happens at one
instant of a trace happens at once, so that a loss in bulk is one (tests/processes/test_market_replay.py).

Who stands in is decided in `control/market/capacity.py`, and done here: rented when spot nodes have stayed away for too
long, drained when they are back, so that nothing they hold is lost (tests/unit/test_stand_ins.py,
tests/journeys/test_spot_away.py).
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from itertools import groupby
from typing import Self

from spotlight.control.market.capacity import Capacity
from spotlight.control.market.traces import Happening, Trace, TraceEvent
from spotlight.core.errors import ConfigError, suggestion
from spotlight.core.events import NodeLost, Record, WorkerJoined, WorkerLost
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import SlotClass
from spotlight.pools.config import ClusterConfig, MarketConfig
from spotlight.pools.pool import Pool


class Market:
    """Replays a trace: waits for the clock alone, ends with the trace, and leaves the nodes as the trace left them."""

    def __init__(self, trace: Trace, pool: Pool, specs: Mapping[str, NodeSpec]) -> None:
        unknown = [name for name in trace.nodes if name not in specs]
        if unknown:
            raise ConfigError(
                f"the trace '{trace.name}' tells of the node '{unknown[0]}', which this run does not have: "
                f"{suggestion(unknown[0], specs)}"
            )
        self._trace = trace
        self._pool = pool
        self._specs = specs
        self._up: dict[str, NodeId] = {}

    async def replay(self) -> None:
        """From now on; compress the trace first to go faster."""
        clock = asyncio.get_running_loop().time
        start = clock()
        for time_s, events in groupby(self._trace.events, key=lambda event: event.time_s):
            await asyncio.sleep(max(0.0, start + time_s - clock()))
            for happening, alike in groupby(events, key=lambda event: event.event):
                await asyncio.gather(*(self._apply(happening, event) for event in alike))

    async def _apply(self, happening: Happening, event: TraceEvent) -> None:
        match happening:
            case Happening.UP:
                self._up[event.node] = await self._pool.add_node(self._specs[event.node])
            case Happening.NOTICE:
                node = _current(self._pool, self._up[event.node])
                await self._pool.warn(node, self._trace.notice_kind(event), event.seconds)
            case Happening.KILL:
                await self._pool.kill_node(_current(self._pool, self._up[event.node]))


async def bring_spot(cluster: ClusterConfig, market: MarketConfig, pool: Pool, haste: float = 1.0) -> None:
    """Spot nodes as the trace says, or all of them from now on; machines boot `haste` times as fast."""
    nodes = cluster.spot_nodes(market.spot_price, market.boot_s / haste)
    trace = market.replayed(cluster.spot)
    if trace is not None:
        await Market(trace, pool, {spec.name: spec for spec in nodes}).replay()
        return
    for spec in nodes:
        await pool.add_node(spec)


class StandIns:
    """Nodes at the on-demand price in place of spot nodes that stay away; without a bound, nobody ever stands in.

    `observe` must see every record of machines: it counts spot nodes by their workers, so that one that is rented but
    still starts counts as missing. `keep` waits for a change of that count and for the policy's own bound.
    """

    def __init__(self, capacity: Capacity, pool: Pool, specs: Mapping[str, NodeSpec]) -> None:
        self._capacity = capacity
        self._pool = pool
        self._specs = specs
        self._rented: dict[str, NodeId] = {}
        self._working: dict[NodeId, set[WorkerId]] = {}
        """Spot nodes that can work, and who works there."""
        self._changed = asyncio.Event()

    @classmethod
    def of(cls, cluster: ClusterConfig, market: MarketConfig, pool: Pool, haste: float = 1.0) -> Self:
        """As configured; patience and boots are `haste` times as short."""
        fallback_s = None if market.fallback_s is None else market.fallback_s / haste
        specs = cluster.stand_ins(market.reserved_price, market.boot_s / haste)
        capacity = Capacity(wanted=cluster.spot, fallback_s=fallback_s)
        return cls(capacity, pool, {spec.name: spec for spec in specs})

    def observe(self, record: Record) -> None:
        match record.event:
            case WorkerJoined(node=node, worker=worker, slot_class=SlotClass.SPOT):
                self._working.setdefault(node, set()).add(worker)
            case WorkerLost(worker=worker):
                node = NodeId(worker.partition("/")[0])
                left = self._working.pop(node, set()) - {worker}
                if left:
                    self._working[node] = left
            case NodeLost(node=node):
                self._working.pop(node, None)
            case _:
                return
        self._changed.set()

    async def keep(self) -> None:
        """For ever; whoever ends the run ends the pool, and with it those who stand in."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while True:
            self._changed.clear()
            order = self._capacity.decide(len(self._working), self._rented, now)
            await asyncio.gather(*map(self._rent, order.rent), *map(self._give_back, order.give_back))
            wake_at = self._capacity.wake_at(now)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(wake_at):
                    await self._changed.wait()
            # A timer may go off a rounding error early; the policy must still see its bound as passed.
            now = loop.time() if wake_at is None or self._changed.is_set() else max(loop.time(), wake_at)

    async def _rent(self, name: str) -> None:
        self._rented[name] = await self._pool.add_node(self._specs[name])

    async def _give_back(self, name: str) -> None:
        await self._pool.drain_node(_current(self._pool, self._rented[name]))
        del self._rented[name]


def _current(pool: Pool, known: NodeId) -> NodeId:
    """The pool may have restarted it since."""
    return pool.current(known.rpartition(".")[0]) or known
