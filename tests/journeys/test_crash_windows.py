"""Every crash window of "exactly once", by name: after a crash there the weights are those of an undisturbed run."""

from functools import cache

import pytest
from story import Story, When

from spotlight.core.events import (
    Accepted,
    AnyEvent,
    Checkpointed,
    Compared,
    Issued,
    IterationDone,
    Published,
    Reopened,
    Restored,
    Selected,
    StepCommitted,
)
from spotlight.sim.crash_points import CrashPoint

STEPS = 3


@cache
def undisturbed() -> str:
    with Story() as story:
        story.end()
        return story.theta


def test_before_accept_worker_dies_with_the_finished_sample_which_is_made_again() -> None:
    with Story() as story:
        story.crash_at(CrashPoint.BEFORE_RESULT)
        report = story.end()
        assert report.workers_lost == 1
        assert story.theta == undisturbed()


def test_before_accept_controller_dies_before_the_record_and_the_sample_is_made_again() -> None:
    with Story() as story:
        story.crash_controller(When.BEFORE, Accepted)
        story.end()
        made = [event.request for event in story.recorded(Accepted)]
        assert len(made) == len(set(made))
        assert story.theta == undisturbed()


def test_sample_accepted_before_a_crash_is_neither_made_nor_counted_again() -> None:
    with Story() as story:
        story.crash_controller(When.AFTER, Accepted)
        story.until(lambda: story.lives == 2)
        first = story.recorded(Accepted)[0]
        story.end()
        assert story.recorded(Accepted, request=first.request) == [first]
        assert sum(first.request in step.requests for step in story.recorded(StepCommitted)) == 1
        assert story.theta == undisturbed()


def test_only_the_missing_samples_of_a_group_are_made_after_a_restart() -> None:
    with Story() as story:
        story.crash_controller(When.AFTER, Accepted, number=2)
        story.until(lambda: story.lives == 2)
        kept = {event.request for event in story.recorded(Accepted)}
        story.end()
        made = [event.request for event in story.recorded(Accepted)]
        assert len(kept) == 2
        assert len(made) == len(set(made))
        assert story.theta == undisturbed()


@pytest.mark.parametrize(
    "window",
    [CrashPoint.ACCUMULATING, CrashPoint.STEPPED, CrashPoint.REPLY_SENT, CrashPoint.PUBLISHING, CrashPoint.PUBLISHED],
)
@pytest.mark.parametrize("steps_before", [0, 1])
def test_gang_dies_in_a_window_and_steps_are_taken_again_from_kept_samples(
    window: CrashPoint, steps_before: int
) -> None:
    with Story() as story:
        story.until(lambda: len(story.recorded(StepCommitted)) == steps_before and story.recorded(Issued))
        story.crash_at(window)
        story.end()
        made = [event.request for event in story.recorded(Accepted)]
        assert len(made) == len(set(made)), "a sample was generated again although its tensors were kept"
        assert story.theta == undisturbed()


def test_gang_dies_after_two_steps_without_checkpoint_and_the_ledger_takes_both_back() -> None:
    with Story(output={"checkpoint_every": 3, "journal": {"sync": "never"}}) as story:
        story.until(lambda: len(story.recorded(StepCommitted)) == 2)
        story.kill("reserved-1")
        story.end()
        assert [event.step for event in story.recorded(Restored)] == [0]
        assert [event.step for event in story.recorded(StepCommitted)] == [0, 1, 0, 1, 2]
        assert story.theta == undisturbed()


@pytest.mark.parametrize("window", [CrashPoint.SAVING, CrashPoint.SAVED])
def test_checkpoint_half_written_is_never_restored_from(window: CrashPoint) -> None:
    with Story() as story:
        story.crash_at(window)
        story.until(lambda: story.recorded(Checkpointed))
        story.kill("reserved-1")
        story.end()
        assert {event.step for event in story.recorded(Restored)} <= {0, 2}
        assert not [path for path in story.storage.checkpoints if path.endswith(".part")]
        assert story.theta == undisturbed()


RECORDS = [Issued, Accepted, Compared, StepCommitted, Published, Selected, IterationDone, Checkpointed]


@pytest.mark.parametrize("record", RECORDS)
def test_torn_record_at_the_end_of_the_journal_is_cut_and_written_again(record: type[AnyEvent]) -> None:
    with Story() as story:
        story.crash_controller(When.WITHIN, record)
        story.end()
        assert story.lives == 2
        assert story.theta == undisturbed()


@pytest.mark.parametrize("record", RECORDS)
def test_controller_dies_right_after_a_record_and_nothing_is_done_twice(record: type[AnyEvent]) -> None:
    with Story() as story:
        story.crash_controller(When.AFTER, record)
        story.end()
        assert story.lives == 2
        assert len(story.recorded(IterationDone)) == STEPS
        assert story.theta == undisturbed()


def test_sample_whose_payload_is_lost_is_made_again_with_its_own_weights() -> None:
    with Story(output={"checkpoint_every": 3, "journal": {"sync": "never"}}) as story:
        story.crash_controller(When.AFTER, Issued, number=4)
        story.until(lambda: len(story.recorded(IterationDone)) == 2)
        story.wait(0.5)
        (lost, *_) = story.storage.payloads()
        story.storage.lose(lost)
        story.invariants.damaged.add(lost)
        story.end()
        (again,) = story.recorded(Reopened)
        made = story.recorded(Accepted, request=again.request)
        assert again.request.startswith("rollout/0/")
        assert [event.digest for event in made] == [made[0].digest] * 2
        assert story.theta == undisturbed()
