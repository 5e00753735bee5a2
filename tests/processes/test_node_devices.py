"""Devices of real nodes, also on machines that join: every slot has its own and keeps it when it returns."""

import asyncio
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_gpus import fake_gpus
from join_stories import ListeningRun, listening
from node_world import PATIENCE_S, ControllerStub, pool_settings

from spotlight.compute.models.config import ModelConfig
from spotlight.compute.train.config import NftConfig, TrainConfig
from spotlight.controller.hub import Hub
from spotlight.core import messages as m
from spotlight.core.types import NodeId, WorkerId
from spotlight.node.worker_settings import WorkerSettings
from spotlight.pools.config import ClusterConfig
from spotlight.pools.devices import assign, probe
from spotlight.pools.local import LocalPool
from spotlight.pools.tokens import token_file_of


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Processes of the pool find the echo worker, which reports its device as its kind."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


async def device_of(controller: ControllerStub, worker: str) -> str:
    return (await controller.wait(m.Hello, worker=WorkerId(worker))).kind


@pytest.mark.slow
def test_eight_nodes_take_eight_gpus_and_a_killed_node_returns_to_its_own(tmp_path):
    cluster = ClusterConfig(reserved=1, spot=7, rows=4)
    with fake_gpus(8):
        devices = assign(cluster, probe("cuda"))
    settings = dataclasses.replace(pool_settings(tmp_path / f"run-{os.getpid()}"), devices=devices)

    async def story():
        pool, controller = LocalPool(settings), ControllerStub()
        await pool.start()
        try:
            await controller.open(settings.controller)
            given = {}
            for spec in (*cluster.reserved_nodes(), *cluster.spot_nodes()):
                # One after the other: a busy machine is slow to start eight agents at once.
                node = await pool.add_node(spec)
                given[node] = await device_of(controller, f"{node}/0.1")
            assert given[NodeId("reserved-1.1")] == "cuda:0"
            assert sorted(given.values()) == [f"cuda:{number}" for number in range(8)]
            # Kill a worker, then two whole nodes.
            await pool.kill_worker(WorkerId("spot-3.1/0.1"))
            assert await device_of(controller, "spot-3.1/0.2") == given[NodeId("spot-3.1")]
            await pool.kill_node(NodeId("spot-5.1"))
            await pool.kill_node(NodeId("spot-2.1"))
            for name in ("spot-2", "spot-5"):
                spec = next(spec for spec in cluster.spot_nodes() if spec.name == name)
                await pool.add_node(spec)
                assert await device_of(controller, f"{name}.2/0.1") == given[NodeId(f"{name}.1")]
        finally:
            await pool.stop()
            await controller.close()

    asyncio.run(story())


def gpu_run(run: ListeningRun) -> None:
    """Let the run compute on GPUs, with workers that only report their device."""
    settings = WorkerSettings(
        run_seed=0, run_folder=str(run.folder), deterministic=False, model=ModelConfig(), train=TrainConfig(),
        algorithm=NftConfig(),
    )  # fmt: skip
    joining = run.pool._settings
    local = dataclasses.replace(
        joining.pool, entry="echo_worker:entry", worker_settings=settings.model_dump_json().encode()
    )
    run.pool._settings = dataclasses.replace(joining, pool=local, device="cuda")


def test_machine_with_two_gpus_joins_with_a_slot_on_each_and_a_killed_worker_returns_to_its_own(tmp_path, monkeypatch):
    kinds: dict[str, str] = {}

    def introduced(hub: Hub, node: NodeId, envelope: m.Envelope, plain=Hub.receive) -> None:
        if isinstance(envelope.message, m.Hello):
            kinds[envelope.worker] = envelope.message.kind
        plain(hub, node, envelope)

    monkeypatch.setattr(Hub, "receive", introduced)
    folder = tmp_path / f"run-{os.getpid()}"
    folder.mkdir()

    async def story():
        async with listening(folder) as run:
            gpu_run(run)
            await run.pool._home.start()
            token_file_of(folder).write(tmp_path / "token.json")
            command = [sys.executable, "-m", "spotlight.surface.cli.main", "join", "--token-file", "token.json"]
            with (tmp_path / "log").open("wb") as log:
                machine = subprocess.Popen([*command, "--name", "box"], stdout=log, stderr=log, cwd=tmp_path)
            try:
                await run.eventually(lambda: kinds.keys() == {"box.1/0.1", "box.1/1.1"})
                assert kinds == {"box.1/0.1": "cuda:0", "box.1/1.1": "cuda:1"}
                await run.pool.kill_worker(WorkerId("box.1/1.1"))
                await run.eventually(lambda: kinds.get("box.1/1.2") == "cuda:1")
            finally:
                machine.terminate()
                assert await asyncio.to_thread(machine.wait, PATIENCE_S) == 0, (tmp_path / "log").read_text()
                await run.pool._home.stop()

    with fake_gpus(2):
        asyncio.run(story())
    assert "joined as box.1: 2 slots on cuda:0, cuda:1" in (tmp_path / "log").read_text()
