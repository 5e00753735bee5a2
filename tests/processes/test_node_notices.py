"""Real agents under notice: of a metadata service, of a file, and SIGTERM beside the pool's own drain."""

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest
from metadata_server import MetadataServer
from node_world import SPOT, grant, group_of, parent_of, world

from spotlight.core import messages as m
from spotlight.core.types import WorkerId
from spotlight.core.work import NoticeKind

FIRST = WorkerId("spot-1.1/0.1")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """A run's folder; its processes find the echo worker."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    return tmp_path / "noticed"


def is_imminent(warned: m.Warned, at_most: float) -> bool:
    return warned.kind is NoticeKind.IMMINENT and not warned.withdrawn and 0 < warned.seconds <= at_most


def agent_of(hello: m.Hello) -> int:
    """Leader of the worker's process group."""
    return os.getpgid(hello.pid)


def test_notice_of_the_cloud_and_its_withdrawal_reach_the_controller(run):
    async def story():
        async with MetadataServer(clouds=("aws",)) as server:
            notices = {"sources": ["aws"], "metadata_url": server.url, "poll_s": 0.05}
            async with world(run, notices=notices) as (pool, controller):
                await pool.add_node(SPOT)
                await controller.worker(FIRST)
                server.interrupt(60)
                assert is_imminent(await controller.wait(m.Warned), 61)
                server.interruption = None
                assert (await controller.wait(m.Warned, count=2)).withdrawn

    asyncio.run(story())


def test_file_of_one_node_is_a_notice_for_that_node_alone(run, tmp_path):
    async def story():
        other = msgspec.structs.replace(SPOT, name="spot-2")
        notices = {"sources": [f"file:{tmp_path}/{{node}}.gone"], "poll_s": 0.05}
        async with world(run, notices=notices) as (pool, controller):
            await pool.add_node(SPOT)
            await pool.add_node(other)
            await controller.worker(FIRST)
            await controller.worker(WorkerId("spot-2.1/0.1"))
            (tmp_path / "spot-1.gone").write_text("40")
            assert is_imminent(await controller.wait(m.Warned), 40)
            (tmp_path / "spot-1.gone").unlink()
            await controller.wait(m.Warned, count=2)
            assert len(controller.all(m.Warned)) == 2

    asyncio.run(story())


def test_sigterm_to_all_processes_of_a_node_is_a_notice_and_ends_none_and_the_pool_can_still_drain_it(run):
    async def story():
        async with world(run, is_scored=True, notices={"sources": ["sigterm"], "grace_s": 25}) as (pool, controller):
            node = await pool.add_node(SPOT)
            hello = await controller.worker(FIRST)
            agent = agent_of(hello)
            os.kill(agent, signal.SIGTERM)
            os.kill(hello.pid, signal.SIGTERM)
            os.kill(parent_of(hello.pid), signal.SIGTERM)
            assert is_imminent(await controller.wait(m.Warned), 25)
            controller.send(node, grant(5), FIRST)
            await controller.wait(m.Result)
            assert {agent, hello.pid} <= group_of(agent)
            await pool.drain_node(node)
            await controller.wait_lost(node)
            assert controller.all(m.HandBack, FIRST)
            assert controller.all(m.Gone) == [m.Gone(worker=FIRST, cause="exited")]

    asyncio.run(story())


def test_sigterm_drains_an_agent_that_does_not_take_it_for_a_notice(run):
    async def story():
        async with world(run) as (pool, controller):
            node = await pool.add_node(SPOT)
            hello = await controller.worker(FIRST)
            os.kill(agent_of(hello), signal.SIGTERM)
            await controller.wait_lost(node)
            assert controller.all(m.HandBack, FIRST)
            assert not controller.all(m.Warned)

    asyncio.run(story())
