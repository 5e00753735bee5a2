"""Every crash window of "exactly once", by name: whatever dies there, the weights are those of an undisturbed run."""

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
        story.strike(CrashPoint.BEFORE_RESULT)
        report = story.end()
        assert report.workers_lost == 1
        assert story.theta == undisturbed()


def test_before_accept_controller_dies_before_the_record_and_the_sample_is_made_again() -> None:
    with Story() as story:
        story.crash(When.BEFORE, Accepted)
        story.end()
        made = [event.request for event in story.said(Accepted)]
        assert len(made) == len(set(made))
        assert story.theta == undisturbed()


def test_accepted_ack_lost_sample_is_neither_made_nor_counted_again() -> None:
    with Story() as story:
        story.crash(When.AFTER, Accepted)
        story.until(lambda: story.lives == 2)
        first = story.said(Accepted)[0]
        story.end()
        assert story.said(Accepted, request=first.request) == [first]
        assert sum(first.request in step.requests for step in story.said(StepCommitted)) == 1
        assert story.theta == undisturbed()


def test_accepted_group_incomplete_only_the_missing_samples_are_made_after_the_restart() -> None:
    with Story() as story:
        story.crash(When.AFTER, Accepted, number=2)
        story.until(lambda: story.lives == 2)
        kept = {event.request for event in story.said(Accepted)}
        story.end()
        made = [event.request for event in story.said(Accepted)]
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
        story.until(lambda: len(story.said(StepCommitted)) == steps_before and story.said(Issued))
        story.strike(window)
        story.end()
        made = [event.request for event in story.said(Accepted)]
        assert len(made) == len(set(made)), "a sample was generated again although its tensors were kept"
        assert story.theta == undisturbed()


def test_gang_dies_after_two_steps_without_checkpoint_and_the_ledger_takes_both_back() -> None:
    with Story(output={"checkpoint_every": 3, "journal": {"sync": "never"}}) as story:
        story.until(lambda: len(story.said(StepCommitted)) == 2)
        story.kill("reserved-1")
        story.end()
        assert [event.step for event in story.said(Restored)] == [0]
        assert [event.step for event in story.said(StepCommitted)] == [0, 1, 0, 1, 2]
        assert story.theta == undisturbed()


@pytest.mark.parametrize("window", [CrashPoint.SAVING, CrashPoint.SAVED])
def test_checkpoint_half_written_is_never_restored_from(window: CrashPoint) -> None:
    with Story() as story:
        story.strike(window)
        story.until(lambda: story.said(Checkpointed))
        story.kill("reserved-1")
        story.end()
        assert {event.step for event in story.said(Restored)} <= {0, 2}
        assert not [path for path in story.storage.checkpoints if path.endswith(".part")]
        assert story.theta == undisturbed()


RECORDS = [Issued, Accepted, Compared, StepCommitted, Published, Selected, IterationDone, Checkpointed]


@pytest.mark.parametrize("record", RECORDS)
def test_journal_tail_torn_at_a_record_it_is_cut_and_done_again(record: type[AnyEvent]) -> None:
    with Story() as story:
        story.crash(When.WITHIN, record)
        story.end()
        assert story.lives == 2
        assert story.theta == undisturbed()


@pytest.mark.parametrize("record", RECORDS)
def test_controller_dies_right_after_a_record_and_nothing_is_done_twice(record: type[AnyEvent]) -> None:
    with Story() as story:
        story.crash(When.AFTER, record)
        story.end()
        assert story.lives == 2
        assert len(story.said(IterationDone)) == STEPS
        assert story.theta == undisturbed()


def test_payload_lost_with_the_machine_sample_is_made_again_from_its_own_weights() -> None:
    with Story(output={"checkpoint_every": 3, "journal": {"sync": "never"}}) as story:
        story.crash(When.AFTER, Issued, number=4)
        story.until(lambda: len(story.said(IterationDone)) == 2)
        story.wait(0.5)
        (lost, *_) = story.storage.payloads()
        story.storage.lose(lost)
        story.invariants.damaged.add(lost)
        story.end()
        (again,) = story.said(Reopened)
        made = story.said(Accepted, request=again.request)
        assert again.request.startswith("rollout/0/")
        assert [event.digest for event in made] == [made[0].digest] * 2
        assert story.theta == undisturbed()
