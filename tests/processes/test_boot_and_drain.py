"""Real nodes: a booting node has no workers; a drained node hands back and does not count as crashed."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest
from node_world import SPOT, eventually, living, marked, world

from spotlight.core import messages as m
from spotlight.core.node_spec import NodeSpec
from spotlight.node.blob_store import BlobStore
from spotlight.pools.pool import Departure, NodeDown

NEVER_S = 1e6


@pytest.fixture
def run(monkeypatch, tmp_path):
    """A run's folder; its processes find the echo worker."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    return tmp_path / "drain"


def named(name: str, boot_s: float) -> NodeSpec:
    return msgspec.structs.replace(SPOT, name=name, boot_s=boot_s)


def test_booting_node_joins_before_its_workers_and_can_be_drained(run):
    async def story():
        mark = marked()
        async with world(run) as (pool, controller):
            booting = await pool.add_node(named("spot-1", NEVER_S))
            ready = await pool.add_node(named("spot-2", 0.05))
            await controller.worker(f"{ready}/0.1")
            await controller.wait(m.NodeHello, count=2)
            assert {hello.node for hello in controller.all(m.Hello)} == {ready}
            await pool.drain_node(booting)
            assert pool.nodes() == (ready,)
        await eventually(lambda: not living(mark), "all processes are gone")

    asyncio.run(story())


def test_node_that_is_drained_hands_back_exits_and_does_not_return(run):
    async def story():
        async with world(run) as (pool, controller):
            node = await pool.add_node(SPOT)
            worker = f"{node}/0.1"
            await controller.worker(worker)
            await pool.drain_node(node)
            await controller.wait_lost(node)
            (given,) = controller.all(m.HandBack, worker)
            assert (given.request, given.attempt, given.step) == ("rollout/0/0/0", 1, 3)
            assert BlobStore(run).get(given.flight) == b"flight"
            assert controller.all(m.Gone) == [m.Gone(worker=worker, cause="exited")]
            assert pool.nodes() == ()
            await pool.drain_node(node)
        downs = [event async for event in pool.events() if isinstance(event, NodeDown)]
        assert [(down.node, down.departure, down.returns) for down in downs] == [(node, Departure.KILLED, False)]

    asyncio.run(story())


def test_node_that_is_drained_before_its_agent_connects_is_killed_and_does_not_return(run):
    async def story():
        async with world(run) as (pool, _):
            node = await pool.add_node(SPOT)
            await pool.drain_node(node)
            assert pool.nodes() == ()
        downs = [event async for event in pool.events() if isinstance(event, NodeDown)]
        assert [(down.departure, down.returns) for down in downs] == [(Departure.KILLED, False)]

    asyncio.run(story())
