"""Real processes: weights that a worker of the node wrote itself."""

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
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def test_worker_that_wrote_weights_holds_them_before_they_are_in_the_store_of_its_node(tmp_path):
    """The file never comes; whoever did not write it holds nothing."""

    async def story():
        async with world(tmp_path / f"run-{os.getpid()}") as (pool, controller):
            node = await pool.add_node(msgspec.structs.replace(SPOT, slots=2))
            await controller.worker(FIRST)
            await controller.worker(SECOND)
            weights = WeightsId(Version(1))
            controller.say(node, m.Publish(weights=(weights,)), FIRST)
            digest = (await controller.wait(m.PublishedWeights)).digest
            controller.say(
                node, m.Load(weights=weights, digest=digest, path=str(tmp_path / "nowhere"), keep=(weights,))
            )
            await controller.wait(m.Held)
            await controller.wait(m.Failed)
            held = [(said.worker, said.message) for said, _ in controller.heard if isinstance(said.message, m.Held)]
            assert held == [(FIRST, m.Held(weights=weights, digest=digest))]

    asyncio.run(story())
