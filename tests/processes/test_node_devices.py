"""Devices of real nodes: every node has its own device and keeps it when it returns."""

import asyncio
import dataclasses
import os
from pathlib import Path

import pytest
from fake_gpus import fake_gpus
from node_world import ControllerStub, pool_settings

from spotlight.core import messages as m
from spotlight.core.types import NodeId, WorkerId
from spotlight.pools.config import ClusterConfig
from spotlight.pools.devices import assign, probe
from spotlight.pools.local import LocalPool


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Processes of the pool find the echo worker, which reports its device as its kind."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


async def device_of(controller: ControllerStub, worker: str) -> str:
    return (await controller.wait(m.Hello, worker=WorkerId(worker))).kind


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
