"""Full disks and damaged bytes: the rest of the run goes on, or it stops with one sentence and can be resumed."""

from functools import cache

import pytest
from story import Story

from spotlight.core.events import Accepted, Holding, NodeLost, Published, Reopened, WorkerLost


@cache
def undisturbed() -> str:
    with Story() as story:
        story.end()
        return story.theta


def test_damaged_copy_of_weights_is_copied_again_and_its_workers_live_on() -> None:
    with Story() as story:
        story.policy.damaging["spot-1"] = 1
        story.end()
        assert story.recorded(WorkerLost) == []
        assert story.policy.damaging["spot-1"] == 0
        (problem,) = story.problems
        assert "is copied again" in problem
        digests = {event.weights: event.digest for event in story.recorded(Published)}
        assert all(event.digest == digests[event.weights] for event in story.recorded(Holding))
        assert any(event.worker.startswith("spot-1.") for event in story.recorded(Accepted))
        assert story.theta == undisturbed()


def test_copy_that_is_damaged_again_is_not_used_and_its_worker_is_replaced() -> None:
    with Story() as story:
        story.policy.damaging["spot-1"] = 2
        story.end()
        assert len(story.recorded(WorkerLost)) == 1
        assert any(event.worker.startswith("spot-1.") for event in story.recorded(Accepted))
        assert story.theta == undisturbed()


def test_spot_node_with_a_full_disk_ends_with_its_reason_and_the_others_go_on() -> None:
    with Story() as story:
        story.policy.full.add("spot-1")
        story.until(lambda: story.recorded(NodeLost))
        assert story.recorded(NodeLost)[0].node == "spot-1.1"
        assert any("no space is left on it; free some." in problem for problem in story.problems)
        story.policy.full.clear()
        story.end()
        assert any(event.worker.startswith("spot-1.") for event in story.recorded(Accepted)), "it came back"
        assert story.theta == undisturbed()


def test_tensors_lost_under_a_living_run_stop_it_and_are_made_again_when_it_is_resumed() -> None:
    with Story() as story:
        story.until(lambda: [event for event in story.recorded(Accepted) if event.request.startswith("rollout/")])
        lost = next(event for event in story.recorded(Accepted) if event.request.startswith("rollout/"))
        assert lost.payload is not None
        story.storage.lose(lost.payload)
        story.invariants.damaged.add(lost.payload)
        story.expected_reason = "cannot be trained on"
        story.end()
        assert story.lives == 2
        assert [event.request for event in story.recorded(Reopened)] == [lost.request]
        assert story.theta == undisturbed()


@pytest.mark.parametrize("kind", ["payloads/", "flights/"])
def test_full_disk_of_the_reserved_node_stops_the_run_and_nothing_is_lost_when_it_is_resumed(kind: str) -> None:
    with Story() as story:
        story.until(lambda: story.recorded(Accepted))
        story.expected_reason = "the disk is full"
        story.storage.is_full = lambda path: path.startswith(kind)
        story.until(lambda: story.lives == 2)
        story.storage.is_full = lambda path: False
        story.end()
        assert story.lives == 2
        assert story.recorded(Reopened) == []
        made = [event.request for event in story.recorded(Accepted)]
        assert len(made) == len(set(made))
        assert story.theta == undisturbed()
