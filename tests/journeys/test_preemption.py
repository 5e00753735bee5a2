"""Work of machines that receive a notice, vanish, join late, slow down or fall silent."""

import pytest
from story import COMMIT_EVERY, Story

from spotlight.core.events import (
    Accepted,
    Compared,
    ExplorationClosed,
    Holding,
    Issued,
    IterationDone,
    Leased,
    Previewed,
    Released,
    StepCommitted,
    WorkerJoined,
    WorkerLost,
)
from spotlight.core.work import NoticeKind, Policy, ReleaseReason, Work
from spotlight.sim.fault_policy import Tempo

LONG = {"prompts": 2, "group_size": 3, "steps": 12}
"""A rollout long enough for faults to occur within it."""


def exact_work(story: Story, worker: str) -> list[Leased]:
    return [
        event for event in story.recorded(Leased, worker=worker) if not event.request.startswith(Work.PREVIEW.value)
    ]


def test_run_without_spot_nodes_continues_and_explores_again_when_they_return() -> None:
    with Story(spot=2, deterministic=False, iterations=5, tempo=Tempo(train_s=6.0)) as story:
        story.until(lambda: story.recorded(Issued, positions=(0, 1)))
        story.kill_for_good("spot-1")
        story.kill_for_good("spot-2")
        story.until(lambda: len(story.recorded(IterationDone)) == 2)
        alone = story.recorded(ExplorationClosed)
        assert {event.finished for event in alone} == {0}
        story.add_node("spot-1")
        story.add_node("spot-2")
        story.end()
        assert story.recorded(ExplorationClosed)[-1].finished > 0
        assert story.recorded(Previewed)


def test_run_without_spot_nodes_has_the_same_weights() -> None:
    with Story(spot=2) as with_spot:
        with_spot.end()
    with Story(spot=0) as alone:
        alone.end()
    assert alone.theta == with_spot.theta


def test_late_arrival_takes_the_current_version_and_works_with_it() -> None:
    with Story(spot=1, rollout=LONG) as story:
        story.kill_for_good("spot-1")
        story.until(lambda: story.recorded(Issued, positions=(2, 3)))
        story.add_node("spot-1")
        story.until(lambda: story.recorded(Holding, worker="spot-1.2/0.1"))
        story.end()
        held = [event.weights for event in story.recorded(Holding, worker="spot-1.2/0.1")]
        assert min(weights.version for weights in held if weights.policy is Policy.BEHAVIOUR) == 1
        made = [event.request for event in story.recorded(Accepted, worker="spot-1.2/0.1")]
        assert any(request.startswith("rollout/1/") for request in made)


def test_advisory_notice_leaves_previews_only() -> None:
    with Story(spot=2, deterministic=False, tempo=Tempo(train_s=6.0)) as story:
        story.until(lambda: len(story.recorded(StepCommitted)) == 1)
        worker = story.worker("spot-1")
        story.warn("spot-1", NoticeKind.ADVISORY, 100.0)
        story.wait(1.0)
        before = len(exact_work(story, worker))
        previews = len(story.recorded(Previewed))
        story.end()
        assert len(exact_work(story, worker)) == before
        assert len(story.recorded(Previewed)) > previews


def test_flight_that_cannot_finish_before_the_deadline_is_handed_back_and_resumes_elsewhere() -> None:
    with Story(spot=2, rollout=LONG | {"steps": 24}) as story:
        story.until(lambda: story.recorded(Leased, worker="spot-1.1/0.1"))
        story.wait(2.0)
        story.warn("spot-1", NoticeKind.IMMINENT, 2.0)
        story.wait(2.0)
        story.kill("spot-1")
        report = story.end()
        released = story.recorded(Released, reason=ReleaseReason.HANDED_BACK)
        handed = [event for event in released if event.request.startswith("rollout/")]
        assert handed
        for event in handed:
            (resumed,) = story.recorded(Leased, request=event.request, attempt=event.attempt + 1)
            assert resumed.step == event.step > 0
            assert resumed.worker != "spot-1.1/0.1"
        assert report.waste.with_notice == 0
        assert report.waste.redone == 0


def test_worker_finishes_its_flights_before_a_distant_deadline() -> None:
    with Story(spot=2, rollout=LONG) as story:
        story.until(lambda: story.recorded(Leased, worker="spot-1.1/0.1"))
        story.wait(1.0)
        held = [event.request for event in story.recorded(Leased, worker="spot-1.1/0.1")]
        story.warn("spot-1", NoticeKind.IMMINENT, 100.0)
        story.end()
        assert all(story.recorded(Accepted, request=request, worker="spot-1.1/0.1") for request in held)


def test_worker_that_slows_down_under_notice_loses_no_work() -> None:
    with Story(spot=2, rollout=LONG) as story:
        story.until(lambda: story.recorded(Leased, worker="spot-1.1/0.1"))
        story.wait(1.0)
        story.warn("spot-1", NoticeKind.IMMINENT, 12.0)
        story.wait(0.5)
        story.world.slow(story.worker("spot-1"), 6.0)
        story.wait(11.5)
        story.kill("spot-1")
        report = story.end()
        assert report.workers_lost == 1
        assert not story.recorded(Released, reason=ReleaseReason.LOST), "it was killed while it held work"
        assert report.waste.with_notice == 0


@pytest.mark.parametrize("after_s", [0.8, 1.2, 1.7, 2.4])
def test_kill_without_notice_costs_each_flight_less_than_a_commit_interval(after_s: float) -> None:
    with Story(spot=2, rollout=LONG) as story:
        story.until(lambda: story.recorded(Leased, worker="spot-1.1/0.1"))
        story.wait(after_s)
        held = len(story.world.owed[story.worker("spot-1")])
        story.kill("spot-1")
        report = story.end()
        lost = story.recorded(Released, reason=ReleaseReason.LOST)
        assert len(lost) == held
        assert all(event.redone <= COMMIT_EVERY for event in lost)
        assert report.waste.largest <= COMMIT_EVERY
        assert report.waste.without_notice <= COMMIT_EVERY * held


def test_straggler_flight_moves_to_a_faster_worker_from_its_boundary() -> None:
    with Story(spot=2, rollout={"prompts": 2, "group_size": 4, "steps": 12}) as story:
        story.until(lambda: story.recorded(Leased, worker="spot-1.1/0.1"))
        story.wait(2.0)
        story.world.slow(story.worker("spot-1"), 20.0)
        story.until(lambda: story.recorded(Compared))
        moved = story.recorded(Released, reason=ReleaseReason.RECALLED)
        assert moved
        for event in moved:
            (resumed,) = story.recorded(Leased, request=event.request, attempt=event.attempt + 1)
            assert (resumed.step, event.redone) == (event.step, 0)
        story.end()


def test_silent_worker_is_fenced_and_its_later_messages_are_refused() -> None:
    with Story(spot=1, rollout=LONG) as story:
        story.until(lambda: story.recorded(Leased, worker="spot-1.1/0.1"))
        held = [event.request for event in story.recorded(Leased, worker="spot-1.1/0.1")]
        story.wait(1.0)
        story.world.freeze(story.worker("spot-1"), 30.0)
        story.until(lambda: story.recorded(WorkerLost, worker="spot-1.1/0.1"))
        assert {event.request for event in story.recorded(Released, reason=ReleaseReason.SILENT)} >= set(held)
        report = story.end()
        assert not story.recorded(Accepted, worker="spot-1.1/0.1")
        assert all(len(story.recorded(Accepted, request=request)) == 1 for request in held)
        assert report.waste.largest <= COMMIT_EVERY


def test_fenced_worker_that_wakes_up_is_ended_and_its_slot_starts_a_new_one() -> None:
    with Story(spot=1, rollout=LONG, iterations=4, tempo=Tempo(step_s=0.8)) as story:
        story.until(lambda: story.recorded(Leased, worker="spot-1.1/0.1"))
        story.wait(1.0)
        story.world.freeze(story.worker("spot-1"), 12.0)
        story.until(lambda: story.recorded(WorkerJoined, worker="spot-1.1/0.2"))
        assert story.recorded(WorkerLost, worker="spot-1.1/0.1", cause="silent")
        story.end()
        assert story.recorded(Accepted, worker="spot-1.1/0.2")
