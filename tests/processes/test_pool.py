"""Nodes as real processes: agents, workers, judges and the nursery, through work, losses, notices and the end."""

import asyncio
import dataclasses
import hashlib
import io
import math
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from echo_worker import BROKEN, HANG, UNJUDGED, payload_of
from node_world import (
    PATIENCE_S,
    SPOT,
    ControllerStub,
    eventually,
    grant,
    group_of,
    living,
    marked,
    parent_of,
    pool_settings,
    semaphores_of,
    world,
    zombies_of,
)
from PIL import Image

from spotlight.core import messages as m
from spotlight.core.errors import EnvironmentProblem
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, Version, WorkerId
from spotlight.core.work import NoticeKind, SlotClass, WeightsId, Work
from spotlight.node.blob_store import BlobStore
from spotlight.pools.local import LocalPool
from spotlight.pools.machine import sockets
from spotlight.pools.pool import Departure, NodeDown

HERE = Path(__file__).parent
FIRST = WorkerId("spot-1.1/0.1")


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Processes of the pool find the echo worker."""
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)


@pytest.fixture
def run(tmp_path):
    return tmp_path / f"run-{os.getpid()}"


def stored(run: Path, controller: ControllerStub, request: str) -> bytes | None:
    """Bytes that a result refers to; every frame itself has none."""
    assert not any(blob for _, blob in controller.received)
    (result,) = [result for result in controller.all(m.Result) if result.request == request]
    return None if result.payload is None else BlobStore(run).get(result.payload)


def test_workers_import_after_their_fork_if_a_library_starts_a_thread_on_import(run):
    settings = dataclasses.replace(pool_settings(run), preload=("threaded_module",))

    async def story():
        pool, controller = LocalPool(settings), ControllerStub()
        await pool.start()
        try:
            await controller.open(settings.controller)
            await pool.add_node(SPOT)
            await controller.worker(FIRST)
        finally:
            await pool.stop()
            await controller.close()

    asyncio.run(story())
    assert "each worker imports after its fork" in (run / "logs" / "nursery.log").read_text()


def test_granted_work_returns_scored_with_its_payload(run):
    async def story():
        async with world(run, is_scored=True) as (pool, controller):
            node = await pool.add_node(SPOT)
            hello = await controller.wait(m.NodeHello)
            assert (hello.node, hello.slot_class, hello.zone, hello.token) == (node, SlotClass.SPOT, "a", "secret")
            assert (await controller.wait(m.Pull, worker=FIRST)).free_rows == SPOT.rows
            controller.send(node, grant(10, 20), FIRST)
            controller.send(node, grant(30, work=Work.PREVIEW), FIRST)
            controller.send(node, grant(40, work=Work.EVALUATION), FIRST)
            await controller.wait(m.Result, count=4)
            by_id = {result.request: result for result in controller.all(m.Result)}
            assert {key: result.score.reward for key, result in by_id.items()} == {
                "rollout/0/0/10": 15.0,
                "rollout/0/0/20": 25.0,
                "preview/0/0/30": 35.0,
                "evaluation/0/0/40": 45.0,
            }
            score = by_id["rollout/0/0/10"].score
            assert score.components == {"letters": 5.0}
            assert score.scorer == "echo_worker:Brightness 7"
            assert stored(run, controller, "rollout/0/0/10") == payload_of("rollout/0/0/10")
            assert stored(run, controller, "preview/0/0/30") is None
            picture = np.asarray(Image.open(io.BytesIO(stored(run, controller, "evaluation/0/0/40"))))
            assert (picture == 40).all()

    asyncio.run(story())


def test_judge_that_fails_on_one_picture_scores_the_others_and_all_payloads_arrive(run):
    async def story():
        async with world(run, is_scored=True) as (pool, controller):
            node = await pool.add_node(SPOT)
            await controller.worker(FIRST)
            controller.send(node, grant(1, UNJUDGED, 2), FIRST)
            await controller.wait(m.Result, count=3)
            by_id = {result.request: result for result in controller.all(m.Result)}
            unjudged = by_id[f"rollout/0/0/{UNJUDGED}"]
            assert math.isnan(unjudged.score.reward)
            assert "too bright to look at" in unjudged.problem
            assert stored(run, controller, unjudged.request) == payload_of(unjudged.request)
            assert [by_id[f"rollout/0/0/{seed}"].score.reward for seed in (1, 2)] == [6.0, 7.0]

    asyncio.run(story())


def test_killed_worker_is_reported_once_and_replaced_by_its_next_incarnation(run):
    async def story():
        async with world(run, is_scored=True) as (pool, controller):
            node = await pool.add_node(msgspec.structs.replace(SPOT, slots=2))
            first = await controller.worker(FIRST)
            other = await controller.worker(WorkerId("spot-1.1/1.1"))
            await pool.kill_worker(FIRST)
            second = await controller.worker(WorkerId("spot-1.1/0.2"))
            assert controller.all(m.Gone) == [m.Gone(worker=FIRST, cause="killed by SIGKILL")]
            kinds = [(type(envelope.message), envelope.worker) for envelope, _ in controller.received]
            assert kinds.index((m.Gone, None)) < kinds.index((m.Hello, WorkerId("spot-1.1/0.2")))
            assert not Path(f"/proc/{first.pid}").exists()
            assert len({first.pid, second.pid, other.pid}) == 3
            controller.send(node, grant(5), WorkerId("spot-1.1/0.2"))
            assert (await controller.wait(m.Result)).score.reward == 10.0

    asyncio.run(story())


def test_worker_that_hangs_or_sends_a_broken_frame_is_killed_and_replaced(run):
    async def story():
        async with world(run, silence_s=0.5) as (pool, controller):
            node = await pool.add_node(SPOT)
            await controller.worker(FIRST)
            controller.send(node, grant(HANG), FIRST)
            assert (await controller.wait(m.Gone)).cause == "silent for 0.5 s"
            second = WorkerId("spot-1.1/0.2")
            await controller.worker(second)
            controller.send(node, grant(BROKEN), second)
            gone = await controller.wait(m.Gone, count=2)
            assert gone.worker == second
            assert "not Spotlight's mark" in gone.cause
            await controller.worker(WorkerId("spot-1.1/0.3"))

    asyncio.run(story())


def test_notice_to_a_node_reaches_the_controller_and_kills_nothing(run):
    async def story():
        async with world(run, is_scored=True) as (pool, controller):
            node = await pool.add_node(SPOT)
            hello = await controller.worker(FIRST)
            await pool.warn(node, NoticeKind.IMMINENT, 30.0)
            warned = await controller.wait(m.Warned)
            assert (warned.kind, warned.withdrawn) == (NoticeKind.IMMINENT, False)
            assert 0 < warned.seconds <= 30.0
            controller.send(node, grant(5), FIRST)
            await controller.wait(m.Result)
            assert Path(f"/proc/{hello.pid}").exists()

    asyncio.run(story())


def test_node_killed_loses_all_its_processes_at_once_and_rejoins_as_the_next_incarnation(run):
    async def story():
        async with world(run, is_scored=True) as (pool, controller):
            node = await pool.add_node(msgspec.structs.replace(SPOT, slots=2))
            other = await pool.add_node(msgspec.structs.replace(SPOT, name="spot-2"))
            worker = await controller.worker(FIRST)
            await controller.worker(WorkerId("spot-1.1/1.1"))
            controller.send(node, grant(5), FIRST)
            await controller.wait(m.Result)
            group = os.getpgid(worker.pid)
            assert len(group_of(group)) >= 4, "an agent, two workers and a judge"
            semaphores = semaphores_of(group_of(group))
            assert semaphores
            await pool.kill_node(node)
            assert group_of(group) == set()
            await eventually(lambda: not any(path.exists() for path in semaphores), "the judges' semaphores are freed")
            await controller.wait_lost(node)
            assert pool.nodes() == (other,)
            assert await pool.add_node(SPOT) == "spot-1.2"
            await controller.worker(WorkerId("spot-1.2/0.1"))
            down = [event async for event in _until_down(pool)][-1]
            assert (down.node, down.departure, down.returns) == (node, Departure.KILLED, False)

    asyncio.run(story())


async def _until_down(pool):
    async for event in pool.events():
        yield event
        if isinstance(event, NodeDown):
            return


def test_crashed_agent_ends_its_workers_and_is_restarted(run):
    async def story():
        async with world(run, is_scored=True) as (pool, controller):
            node = await pool.add_node(SPOT)
            worker = await controller.worker(FIRST)
            controller.send(node, grant(5), FIRST)
            await controller.wait(m.Result)
            group = os.getpgid(worker.pid)
            os.kill(group, signal.SIGKILL)
            down = [event async for event in _until_down(pool)][-1]
            assert (down.departure, down.returns) == (Departure.CRASHED, True)
            assert group_of(group) == set()
            await controller.worker(WorkerId("spot-1.2/0.1"))

    asyncio.run(story())


def test_dead_nursery_ends_every_node_and_both_are_restarted(run):
    async def story():
        async with world(run, is_scored=True) as (pool, controller):
            await pool.add_node(SPOT)
            worker = await controller.worker(FIRST)
            nursery = parent_of(worker.pid)
            group = os.getpgid(worker.pid)
            os.kill(nursery, signal.SIGKILL)
            await controller.worker(WorkerId("spot-1.2/0.1"))
            assert group_of(group) == set()

    asyncio.run(story())


def test_drained_workers_hand_back_and_exit_on_their_own(run):
    async def story():
        async with world(run, is_scored=True) as (pool, controller):
            node = await pool.add_node(msgspec.structs.replace(SPOT, slots=2))
            for slot in (0, 1):
                await controller.worker(WorkerId(f"spot-1.1/{slot}.1"))
            controller.send(node, grant(5), FIRST)
            controller.send(node, m.Drain())
            await controller.wait_lost(node)
            assert len(controller.all(m.HandBack)) == 2
            assert len(controller.all(m.Result)) == 1, "a sample that is being scored survives the drain"
            assert {gone.cause for gone in controller.all(m.Gone)} == {"exited"}
            down = [event async for event in _until_down(pool)][-1]
            assert (down.departure, down.returns) == (Departure.LEFT, False)

    asyncio.run(story())


def test_weights_are_copied_to_the_node_and_a_late_worker_loads_the_current_ones_only(run, tmp_path):
    files = {version: tmp_path / f"behaviour-{version}.safetensors" for version in (1, 2)}
    for version, file in files.items():
        file.write_bytes(bytes([version]) * 100_000)

    def load(version: int) -> m.Load:
        return m.Load(weights=WeightsId(Version(version)), digest=f"d{version}", path=str(files[version]))

    async def story():
        async with world(run) as (pool, controller):
            node = await pool.add_node(SPOT)
            await controller.worker(FIRST)
            controller.send(node, load(1))
            await controller.wait(m.Held)
            controller.send(node, load(2))
            held = await controller.wait(m.Held, count=2)
            assert held.digest == hashlib.sha256(files[2].read_bytes()).hexdigest()
            await eventually(
                lambda: [path.name for path in sockets(run).glob("spot-1/*")] == ["behaviour-2.safetensors"],
                "the node keeps only weights that may still be needed",
            )
            files[2].unlink()
            await pool.kill_worker(FIRST)
            late = WorkerId("spot-1.1/0.2")
            assert (await controller.wait(m.Held, worker=late)).weights == WeightsId(Version(2))
            assert len(controller.all(m.Held, late)) == 1
            files[1].unlink()
            controller.send(node, load(1))
            problem = (await controller.wait(m.Failed)).problem
            assert "behaviour-1.safetensors are gone" in problem
            down = [event async for event in _until_down(pool)][-1]
            assert (down.departure, down.returns) == (Departure.CRASHED, True), "the node cannot work and is restarted"

    asyncio.run(story())


def test_controller_killed_leaves_no_process_and_the_next_start_clears_its_shared_memory(run):
    mark = marked()
    controller = subprocess.Popen(
        [sys.executable, str(HERE / "doomed_controller.py"), str(run)], stdout=subprocess.PIPE, text=True
    )
    assert controller.stdout.readline() == "working\n"
    assert len(living(mark)) >= 6, "controller, nursery, two agents and their workers"
    controller.kill()
    controller.wait()
    controller.stdout.close()

    async def story():
        await eventually(lambda: not living(mark), f"every process of the dead controller ends: {living(mark)}")
        assert (sockets(run) / "spot-1").exists()
        async with world(run) as (pool, stub):
            assert not (sockets(run) / "spot-1").exists()
            assert await pool.add_node(SPOT) == "spot-1.2", "no worker's id is ever used twice in a run"
            await stub.worker(WorkerId("spot-1.2/0.1"))
        assert not sockets(run).exists()

    asyncio.run(story())


@pytest.mark.parametrize("is_bare", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_twenty_random_kills_in_a_row_leave_no_orphan_and_no_zombie(run, is_bare):
    mark = marked()
    specs = [NodeSpec(name=f"spot-{number}", slot_class=SlotClass.SPOT, slots=2) for number in (1, 2)]
    chance = random.Random(7)

    async def story():
        async with world(run, is_bare, is_scored=True) as (pool, controller):
            nodes = [await pool.add_node(spec) for spec in specs]
            for _ in range(20):
                index = chance.randrange(len(nodes))
                if chance.random() < 0.7:
                    slot = chance.randrange(2)
                    worker = _newest(controller, nodes[index], slot)
                    if worker is not None:
                        await pool.kill_worker(worker)
                        await eventually(
                            lambda worker=worker: any(gone.worker == worker for gone in controller.all(m.Gone)),
                            f"{worker} is reported as gone",
                        )
                    else:
                        await controller.wait(m.Hello, count=len(controller.all(m.Hello)) + 1)
                else:
                    await pool.kill_node(nodes[index])
                    nodes[index] = await pool.add_node(specs[index])
            for node in nodes:
                await eventually(lambda node=node: _newest(controller, node, 0), f"{node} works again")
                worker = _newest(controller, node, 0)
                controller.send(node, grant(9), worker)
                assert (await controller.wait(m.Result, worker=worker)).score.reward == 14.0
            nursery = parent_of((await controller.worker(_newest(controller, nodes[0], 0))).pid)
            await eventually(lambda: not zombies_of(nursery), "the nursery reaps")
            assert not zombies_of(os.getpid())
        await eventually(lambda: not living(mark), "no process is left after stop")

    asyncio.run(story())


def _newest(controller: ControllerStub, node: NodeId, slot: int) -> WorkerId | None:
    """The live worker of the slot as the controller has it."""
    dead = {gone.worker for gone in controller.all(m.Gone)}
    workers = [
        envelope.worker
        for envelope, _ in controller.received
        if isinstance(envelope.message, m.Hello) and envelope.worker.startswith(f"{node}/{slot}.")
    ]
    return next((worker for worker in reversed(workers) if worker not in dead), None)


def test_second_pool_on_a_live_run_and_a_missing_module_are_refused(run):
    async def story():
        async with world(run):
            with pytest.raises(EnvironmentProblem, match="another process works on this run"):
                await LocalPool(pool_settings(run)).start()
        broken = LocalPool(dataclasses.replace(pool_settings(run), preload=("no_such_module",)))
        with pytest.raises(EnvironmentProblem, match="No module named 'no_such_module'"):
            await broken.start()
        await broken.stop()
        assert not sockets(run).exists()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


def test_agent_modules_never_load_torch():
    check = "import sys, spotlight.node.agent, spotlight.pools.local, spotlight.pools.market; "
    check += "print([name for name in ('torch', 'diffusers', 'ray') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
