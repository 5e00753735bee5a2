"""Spare processes of nodes whose workers import after their fork: used, replaced, and never left behind."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from live_run import RECIPE, LiveRun
from node_world import SPOT, ControllerStub, eventually, living, marked, parent_of, pool_settings, spares_of, world

from spotlight.core import messages as m
from spotlight.core.events import Accepted, WorkerJoined
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import SlotClass
from spotlight.node.launch import SlotDevice
from spotlight.pools.devices import DeviceTable
from spotlight.pools.local import LocalPool

HERE = Path(__file__).parent
FIRST, SECOND = WorkerId("spot-1.1/0.1"), WorkerId("spot-1.1/0.2")


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Processes of the pool find the echo worker."""
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)


@pytest.fixture
def run(tmp_path):
    return tmp_path / f"run-{os.getpid()}"


async def spare_of(group: int, other_than: int = 0) -> int:
    """The only spare process of a node, awaited."""
    found: set[int] = set()

    def seen() -> bool:
        nonlocal found
        found = spares_of(group) - {other_than}
        return bool(found)

    await eventually(seen, "the node has a spare process")
    (spare,) = found
    return spare


async def node_with_spare(pool: LocalPool, controller: ControllerStub) -> tuple[NodeId, int, int]:
    """A node of two slots: its name, its process group and its spare."""
    node = await pool.add_node(msgspec.structs.replace(SPOT, slots=2))
    group = os.getpgid((await controller.worker(FIRST)).pid)
    await controller.worker(WorkerId("spot-1.1/1.1"))
    return node, group, await spare_of(group)


def test_spare_is_the_next_worker_and_a_new_one_follows(run):
    async def story():
        async with world(run, is_bare=True) as (pool, controller):
            _, group, spare = await node_with_spare(pool, controller)
            await pool.kill_worker(FIRST)
            assert (await controller.worker(SECOND)).pid == spare
            following = await spare_of(group)
            assert following != spare
            # It may still import.
            await pool.kill_worker(SECOND)
            assert (await controller.worker(WorkerId("spot-1.1/0.3"))).pid == following
            assert [gone.worker for gone in controller.all(m.Gone)] == [FIRST, SECOND]
            assert (run / "logs" / "spot-1.1-0.2.log").exists()

    asyncio.run(story())


@pytest.mark.slow
def test_two_workers_killed_at_once_are_both_replaced_and_one_spare_is_left(run):
    async def story():
        async with world(run, is_bare=True) as (pool, controller):
            _, group, spare = await node_with_spare(pool, controller)
            for slot in (0, 1):
                await pool.kill_worker(WorkerId(f"spot-1.1/{slot}.1"))
            pids = [(await controller.worker(WorkerId(f"spot-1.1/{slot}.2"))).pid for slot in (0, 1)]
            assert spare in pids
            assert (await spare_of(group)) not in pids

    asyncio.run(story())


def test_killed_spare_is_replaced_and_costs_no_worker(run):
    async def story():
        async with world(run, is_bare=True) as (pool, controller):
            _, group, spare = await node_with_spare(pool, controller)
            os.kill(spare, signal.SIGKILL)
            following = await spare_of(group, other_than=spare)
            assert controller.all(m.Gone) == []
            await pool.kill_worker(FIRST)
            assert (await controller.worker(SECOND)).pid == following

    asyncio.run(story())
    assert "ended with status -9: another one starts in 1 s" in (run / "logs" / "nursery.log").read_text()


def test_worker_starts_without_the_spare_that_has_just_died(run):
    async def story():
        async with world(run, is_bare=True) as (pool, controller):
            _, _, spare = await node_with_spare(pool, controller)
            os.kill(spare, signal.SIGKILL)
            await pool.kill_worker(FIRST)
            assert (await controller.worker(SECOND)).pid != spare

    asyncio.run(story())


def _kill_agent(group: int, nursery: int) -> None:
    os.kill(group, signal.SIGKILL)


def _kill_nursery(group: int, nursery: int) -> None:
    os.kill(nursery, signal.SIGKILL)


@pytest.mark.parametrize("kill", [_kill_agent, _kill_nursery])
def test_spare_ends_with_its_agent_and_its_nursery(run, kill):
    async def story():
        async with world(run, is_bare=True) as (pool, controller):
            _, group, spare = await node_with_spare(pool, controller)
            kill(group, parent_of(spare))
            await eventually(lambda: not Path(f"/proc/{spare}").exists(), "the spare process ends")
            # The pool restarts the node, and the nursery if that is gone.
            returned = os.getpgid((await controller.worker(WorkerId("spot-1.2/0.1"))).pid)
            await controller.worker(WorkerId("spot-1.2/1.1"))
            assert await spare_of(returned) != spare

    asyncio.run(story())


@pytest.mark.slow
def test_spare_ends_with_a_killed_and_with_a_drained_node(run):
    async def story():
        async with world(run, is_bare=True) as (pool, controller):
            node, _, spare = await node_with_spare(pool, controller)
            await pool.kill_node(node)
            assert not Path(f"/proc/{spare}").exists()
            again = await pool.add_node(SPOT)
            group = os.getpgid((await controller.worker(WorkerId(f"{again}/0.1"))).pid)
            spare = await spare_of(group)
            await pool.drain_node(again)
            assert not Path(f"/proc/{spare}").exists()

    asyncio.run(story())


def test_stopped_pool_and_killed_owner_leave_no_spare(run):
    mark = marked()

    async def stopped():
        async with world(run, is_bare=True) as (pool, controller):
            await node_with_spare(pool, controller)
        # Killed with its node; on a busy machine the kernel takes a moment.
        await eventually(lambda: not living(mark), "every process of the stopped pool ends")

    asyncio.run(stopped())
    command = [sys.executable, str(HERE / "doomed_controller.py"), str(run), "bare"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout.readline() == "working\n"
        groups = {os.getpgid(pid) for pid in living(mark)}

        async def killed():
            await eventually(lambda: any(spares_of(group) for group in groups), "a node has a spare process")
            owner.kill()
            await eventually(lambda: not living(mark), f"every process of the dead owner ends: {living(mark)}")

        asyncio.run(killed())


def test_spare_opens_the_device_of_its_node_before_it_is_a_worker(run):
    table = DeviceTable({("spot-1", 0): SlotDevice("cuda:3", has_spare=True)})
    settings = dataclasses.replace(pool_settings(run), devices=table, is_bare=True, warm="echo_worker:warm")

    async def story():
        pool, controller = LocalPool(settings), ControllerStub()
        await pool.start()
        try:
            await controller.open(settings.controller)
            await pool.add_node(SPOT)
            group = os.getpgid((await controller.worker(FIRST)).pid)
            spare = await spare_of(group)
            log = run / "logs" / "spot-1.1-spare.log"
            await eventually(lambda: log.read_text() == "opened cuda:3\n", "the spare process opens the device")
            await pool.kill_worker(FIRST)
            replaced = await controller.worker(SECOND)
            assert (replaced.pid, replaced.kind) == (spare, "cuda:3")
        finally:
            await pool.stop()
            await controller.close()

    asyncio.run(story())


def test_nursery_that_forks_from_imported_modules_keeps_no_spare(run):
    async def story():
        async with world(run) as (pool, controller):
            await pool.add_node(SPOT)
            group = os.getpgid((await controller.worker(FIRST)).pid)
            await pool.kill_worker(FIRST)
            # The request for a spare was sent before the order to replace the worker.
            await controller.worker(SECOND)
            assert not spares_of(group)

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_run_whose_trainer_is_replaced_by_a_spare_ends_with_the_weights_of_an_undisturbed_run_that_forks(
    tmp_path_factory,
):
    # Reserved only: no other node has a spare process, which would start first.
    recipe = RECIPE.format(iterations=2).replace("spot: 2", "spot: 0")
    undisturbed, run = (LiveRun(tmp_path_factory.mktemp(name), recipe) for name in ("undisturbed", "bare"))
    try:
        undisturbed.start()
        assert undisturbed.finish() == 0, undisturbed.log()
        run.start_bare()
        trainer = run.wait_for_event(WorkerJoined, lambda event: event.slot_class is SlotClass.RESERVED)
        group = os.getpgid(trainer.pid)
        (spare,) = run.wait_for(lambda: spares_of(group))
        run.wait_for_event(Accepted)
        os.kill(trainer.pid, signal.SIGKILL)
        assert run.finish() == 0, run.log()
    finally:
        undisturbed.close()
        run.close()
    joined = [event.pid for event in run.events(WorkerJoined) if event.slot_class is SlotClass.RESERVED]
    assert joined == [trainer.pid, spare]
    run.check()
    assert run.theta() == undisturbed.theta()
    assert "each worker imports" not in (run.run / "logs" / "nursery.log").read_text()
