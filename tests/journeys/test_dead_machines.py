"""Simulated machines that die are freed without the garbage collector, which is off in a long run."""

import gc
import weakref

import pytest
from story import Story

from spotlight.core.events import Accepted, WorkerLost


@pytest.fixture(autouse=True)
def _no_garbage_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def references(story: Story, name: str) -> list[weakref.ref[object]]:
    node = story.world.nodes[name]
    return [weakref.ref(node), weakref.ref(node.crews), *(weakref.ref(worker) for worker in node.workers.values())]


def test_killed_node_is_freed_with_its_workers() -> None:
    with Story(spot=2, slots=2) as story:
        story.until(lambda: story.recorded(Accepted))
        references_before = references(story, "spot-1")
        assert len(references_before) == 4
        story.world.kill("spot-1")
        story.until(lambda: len(story.recorded(WorkerLost)) == 2)
        story.wait(5.0)
        assert [each() for each in references_before] == [None] * 4


def test_killed_worker_is_freed_while_its_node_lives_on() -> None:
    with Story(spot=1) as story:
        story.until(lambda: story.recorded(Accepted))
        node, _, worker = references(story, "spot-1")
        story.world.kill_worker(story.world.worker_ids()[-1])
        story.until(lambda: story.recorded(WorkerLost))
        story.wait(5.0)
        assert worker() is None
        assert node() is story.world.nodes["spot-1"]
