"""The spot market of a run over any pool: replays a trace of spot nodes, and rents stand-ins for absent ones.

Both are tasks of the controller's event loop, not processes: the pool is the parent of the agents, so only it can kill
them without hitting a reused pid, and no market outlives its run. Events at one instant of a trace are applied
together, so a loss in bulk stays one loss (tests/processes/test_market_replay.py).

`control/market/capacity.py` decides about stand-ins. They are rented when spot nodes have been absent for too long, and
drained when those are back, so no work is lost (tests/unit/test_stand_ins.py, tests/journeys/test_spot_away.py).
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple, Self

from spotlight.compute.train.config import AUTO
from spotlight.control.market.allowance import Allowance
from spotlight.control.market.capacity import Capacity
from spotlight.control.market.traces import Happening, Trace, TraceEvent
from spotlight.core.errors import ConfigError, suggestion
from spotlight.core.events import IterationDone, NodeLost, Record, WorkerJoined, WorkerLost
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import SlotClass
from spotlight.pools.config import AUTO_FALLBACK_S, ClusterConfig, MarketConfig
from spotlight.pools.pool import Pool


class Market:
    """Replays a trace: waits only for the clock, ends with the trace, and leaves the nodes in its last state."""

    def __init__(self, trace: Trace, pool: Pool, specs: Mapping[str, NodeSpec]) -> None:
        unknown = [name for name in trace.nodes if name not in specs]
        if unknown:
            raise ConfigError(
                f"the trace '{trace.name}' names the node '{unknown[0]}', which this run does not have: "
                f"{suggestion(unknown[0], specs)}"
            )
        self._trace = trace
        self._pool = pool
        self._specs = specs
        self._up: dict[str, NodeId] = {}

    async def replay(self) -> None:
        """Replay the trace from now on; compress the trace first for a faster replay."""
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
    """Replay the trace, or start all spot nodes if there is none; boot times are divided by `haste`."""
    nodes = cluster.spot_nodes(market.spot_price, market.boot_s / haste)
    trace = market.replayed(cluster.spot)
    if trace is not None:
        await Market(trace, pool, {spec.name: spec for spec in nodes}).replay()
        return
    for spec in nodes:
        await pool.add_node(spec)


class Purse(NamedTuple):
    """The allowance of a run with limits, and the dollars that it has spent so far."""

    allowance: Allowance
    spent: Callable[[], float]


class StandIns:
    """Rents nodes at the on-demand price for absent spot nodes; without `fallback_s` it rents none.

    `observe` must receive every record of machines and iterations: it counts spot nodes by their workers, so a node
    that still starts counts as absent. `keep` waits for a change of that count, for the policy's time limit and, where
    the run's limits decide, for the end of an iteration.
    """

    def __init__(self, capacity: Capacity, pool: Pool, specs: Mapping[str, NodeSpec], purse: Purse | None) -> None:
        self._capacity = capacity
        self._pool = pool
        self._specs = specs
        self._purse = purse
        self._fallback_s = capacity.fallback_s
        self._rented: dict[str, NodeId] = {}
        self._stood_in = False
        """Whether any stand-in was rented since the last iteration ended."""
        self._working: dict[NodeId, set[WorkerId]] = {}
        """Workers of each spot node that has any."""
        self._changed = asyncio.Event()

    @classmethod
    def of(
        cls, cluster: ClusterConfig, market: MarketConfig, pool: Pool, haste: float = 1.0, purse: Purse | None = None
    ) -> Self:
        """Build from the configuration; `fallback_s` and boot times are divided by `haste`; a `purse` decides."""
        wait_s = AUTO_FALLBACK_S if market.fallback_s == AUTO else market.fallback_s
        fallback_s = None if wait_s is None else wait_s / haste
        specs = cluster.stand_ins(market.reserved_price, market.boot_s / haste)
        capacity = Capacity(wanted=cluster.spot, fallback_s=fallback_s)
        return cls(capacity, pool, {spec.name: spec for spec in specs}, purse)

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
            case IterationDone(iteration=iteration) if self._purse is not None:
                allowance, spent = self._purse
                allowance.iterated(iteration + 1, record.at, spent(), self._stood_in)
                self._stood_in = bool(self._rented)
            case _:
                return
        self._changed.set()

    async def keep(self) -> None:
        """Rent and give back stand-ins until cancelled; the end of the pool ends its stand-ins."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while True:
            self._changed.clear()
            if self._purse is not None:
                self._capacity.fallback_s = self._fallback_s if self._purse.allowance.is_given else None
            order = self._capacity.decide(len(self._working), self._rented, now)
            await asyncio.gather(*map(self._rent, order.rent), *map(self._give_back, order.give_back))
            wake_at = self._capacity.wake_at(now)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(wake_at):
                    await self._changed.wait()
            # A timer may fire early by a rounding error; the policy must still find its time limit passed.
            now = loop.time() if wake_at is None or self._changed.is_set() else max(loop.time(), wake_at)

    async def _rent(self, name: str) -> None:
        self._rented[name] = await self._pool.add_node(self._specs[name])
        self._stood_in = True

    async def _give_back(self, name: str) -> None:
        await self._pool.drain_node(_current(self._pool, self._rented[name]))
        del self._rented[name]


def _current(pool: Pool, known: NodeId) -> NodeId:
    """The running incarnation of a node: the pool may have restarted it."""
    return pool.current(known.rpartition(".")[0]) or known
