"""Replays a trace against a pool: nodes come, are warned and are killed for real, faster than in the trace if wished.

A task of the controller's event loop, not a process of its own: the pool is the parent of the agents, so only it can
kill them without ever hitting a reused pid, and a market that outlives its run cannot exist. What happens at one
instant happens at once, so that a loss in bulk is one (tests/processes/test_market_replay.py).

Waits for the clock alone; ends with the trace, and leaves the nodes as the trace left them.
"""

import asyncio
from collections.abc import Mapping
from itertools import groupby

from spotlight.control.market.traces import Happening, Trace, TraceEvent
from spotlight.core.errors import ConfigError, suggestion
from spotlight.core.types import NodeId
from spotlight.runtime.pool import NodeSpec, Pool


class Market:
    """The spot market of one run."""

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
                await self._pool.warn(self._current(event.node), self._trace.notice_kind(event), event.seconds)
            case Happening.KILL:
                await self._pool.kill_node(self._current(event.node))

    def _current(self, name: str) -> NodeId:
        """The pool may have restarted it since."""
        known = self._up[name]
        return next((node for node in self._pool.nodes() if node.rpartition(".")[0] == name), known)
