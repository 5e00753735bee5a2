"""A market that replays a trace against real nodes: notices, losses in bulk, returns."""

import asyncio
import os
from pathlib import Path

import pytest
from node_world import SPOT, ControllerStub, pool_settings, world

from spotlight.control.market.traces import Happening, TraceEvent, in_order
from spotlight.core import messages as m
from spotlight.core.errors import ConfigError
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind, SlotClass
from spotlight.pools.local import LocalPool
from spotlight.pools.market import Market
from spotlight.pools.pool import NodeDown, NodeUp


@pytest.fixture
def run(monkeypatch, tmp_path):
    """A run's folder; its processes find the echo worker."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    return tmp_path / "market"


class SynchronousPool:
    """A pool whose calls return after they have taken effect, so that a busy machine has the same order of events."""

    def __init__(self, pool: LocalPool, controller: ControllerStub) -> None:
        self.current, self.kill_node = pool.current, pool.kill_node
        self._pool, self._controller = pool, controller

    async def add_node(self, spec: NodeSpec) -> NodeId:
        node = await self._pool.add_node(spec)
        await self._controller.worker(WorkerId(f"{node}/0.1"))
        return node

    async def warn(self, node: NodeId, kind: NoticeKind, seconds: float) -> None:
        await self._pool.warn(node, kind, seconds)
        await self._controller.wait(m.Warned)


def test_market_replays_a_trace_with_notice_and_a_bulk_loss_and_all_nodes_return(run):
    specs = {name: NodeSpec(name=name, slot_class=SlotClass.SPOT) for name in ("spot-1", "spot-2")}
    trace = in_order(
        "story",
        [
            *(TraceEvent(0.0, name, Happening.UP) for name in specs),
            TraceEvent(150.0, "spot-1", Happening.NOTICE, 50.0),
            *(TraceEvent(200.0, name, Happening.KILL) for name in specs),
            *(TraceEvent(210.0, name, Happening.UP) for name in specs),
        ],
    ).compressed(100)

    async def story():
        async with world(run) as (pool, controller):
            await Market(trace, SynchronousPool(pool, controller), specs).replay()
            assert pool.nodes() == ("spot-1.2", "spot-2.2")
            (warned,) = controller.all(m.Warned)
            assert warned.kind is NoticeKind.IMMINENT
            assert warned.seconds <= 0.5
        events = [event async for event in pool.events()]
        assert [type(event) for event in events[:6]] == [NodeUp, NodeUp, NodeDown, NodeDown, NodeUp, NodeUp]

    asyncio.run(story())


def test_market_with_a_trace_of_unknown_nodes_is_refused_with_a_suggestion(run):
    trace = in_order("story", [TraceEvent(0.0, "spto-1", Happening.UP)])
    with pytest.raises(ConfigError, match="did you mean 'spot-1'"):
        Market(trace, LocalPool(pool_settings(run)), {"spot-1": SPOT})
