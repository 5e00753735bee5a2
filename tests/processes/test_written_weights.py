"""Real processes: weights written by a worker of the node."""

import asyncio
import os
from pathlib import Path

import msgspec
import pytest
from node_world import SPOT, world

from spotlight.core import messages as m
from spotlight.core.types import Version, WorkerId
from spotlight.core.work import WeightsId

HERE = Path(__file__).parent
FIRST, SECOND = WorkerId("spot-1.1/0.1"), WorkerId("spot-1.1/1.1")


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Processes of the pool find the echo worker."""
    monkeypatch.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)


def test_worker_that_wrote_weights_holds_them_before_the_store_of_its_node_does(tmp_path):
    """The file never arrives, so the other worker of the node holds no weights."""

    async def story():
        async with world(tmp_path / f"run-{os.getpid()}") as (pool, controller):
            node = await pool.add_node(msgspec.structs.replace(SPOT, slots=2))
            await controller.worker(FIRST)
            await controller.worker(SECOND)
            weights = WeightsId(Version(1))
            controller.send(node, m.Publish(weights=(weights,)), FIRST)
            digest = (await controller.wait(m.PublishedWeights)).digest
            controller.send(
                node, m.Load(weights=weights, digest=digest, path=str(tmp_path / "nowhere"), keep=(weights,))
            )
            await controller.wait(m.Held)
            await controller.wait(m.Failed)
            held = [
                (envelope.worker, envelope.message)
                for envelope, _ in controller.received
                if isinstance(envelope.message, m.Held)
            ]
            assert held == [(FIRST, m.Held(weights=weights, digest=digest))]

    asyncio.run(story())
