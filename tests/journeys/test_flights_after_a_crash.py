"""The controller and every node die in mid-rollout: samples continue from their newest commit that is left."""

from collections.abc import Callable
from functools import cache

import pytest
from story import COMMIT_EVERY, Story

from spotlight.control.ledger.tally import AuditReport
from spotlight.core.events import Accepted, IterationDone, Leased, Published, Released, RunResumed
from spotlight.core.work import ReleaseReason, RequestId
from spotlight.sim.fault_policy import Tempo

STEPS = 6
SLOW = Tempo(step_s=2.0)


@cache
def undisturbed() -> str:
    with Story(tempo=SLOW) as story:
        story.end()
        return story.theta


def first_leases(story: Story) -> dict[RequestId, int]:
    """Step of each sample's first lease after the newest restart."""
    newest = max(number for number, event in enumerate(story.events) if isinstance(event, RunResumed))
    return {event.request: event.step for event in reversed(story.events[newest:]) if isinstance(event, Leased)}


def crash(story: Story, steps: int = 2 * COMMIT_EVERY) -> dict[RequestId, int]:
    """Wait until most samples in flight are committed at this step, and kill everything; return the commits."""
    story.until(lambda: sum(step >= steps for step in story.committed().values()) > 2)
    committed, lives = story.committed(), story.lives
    story.crash_now()
    story.until(lambda: story.lives == lives + 1)
    return committed


def end(story: Story, expected: dict[RequestId, int]) -> AuditReport:
    report = story.end()
    leases = first_leases(story)
    assert {request: leases[request] for request in expected} == expected
    assert story.theta == undisturbed()
    return report


def spoil(story: Story, act: Callable[[str], None], chosen: Callable[[int], bool]) -> None:
    """Damage the stored parts of these steps."""
    for part in story.storage.flights():
        if chosen(part.step):
            act(part.ref.path)
            story.invariants.damaged.add(part.ref.path)


def test_samples_continue_from_their_last_commit_and_nothing_before_it_is_repeated() -> None:
    with Story(tempo=SLOW) as story:
        committed = crash(story)
        report = end(story, committed)
        assert set(committed.values()) == {2 * COMMIT_EVERY}
        released = story.recorded(Released, reason=ReleaseReason.RESTART)
        assert {event.request: event.step for event in released if event.step} == committed
        assert report.waste.restart == 0
        # The attempts after the restart take the steps after the commit only.
        made = {event.request: event.steps for event in story.recorded(Accepted)}
        assert {made[request] for request in committed} == {STEPS - 2 * COMMIT_EVERY}


def test_second_crash_before_the_next_commit_changes_nothing() -> None:
    with Story(tempo=SLOW) as story:
        committed = crash(story)
        story.until(lambda: set(committed) <= set(first_leases(story)))
        story.crash_now()
        story.until(lambda: story.lives == 3)
        end(story, committed)


def test_second_crash_after_the_next_commit_continues_from_parts_of_both_lives() -> None:
    with Story(tempo=SLOW) as story:
        first = crash(story, COMMIT_EVERY)
        second = crash(story)
        assert set(first) <= set(second)
        end(story, second)


@pytest.mark.parametrize("act", ["lose", "damage_flight", "cut_flight"])
def test_newest_part_is_lost_damaged_or_cut_and_the_commit_before_is_continued(act: str) -> None:
    with Story(tempo=SLOW) as story:
        story.until(lambda: sum(step >= 2 * COMMIT_EVERY for step in story.committed().values()) > 2)
        committed = story.committed()
        story.crash_now()
        spoil(story, getattr(story.storage, act), lambda step: step == 2 * COMMIT_EVERY)
        report = end(story, dict.fromkeys(committed, COMMIT_EVERY))
        assert story.lives == 2
        assert report.clean


@pytest.mark.parametrize("act", ["lose", "damage_flight", "cut_flight"])
def test_part_that_all_others_build_on_is_lost_damaged_or_cut_and_samples_start_over(act: str) -> None:
    with Story(tempo=SLOW) as story:
        story.until(lambda: sum(step >= 2 * COMMIT_EVERY for step in story.committed().values()) > 2)
        committed = story.committed()
        story.crash_now()
        spoil(story, getattr(story.storage, act), lambda step: step == COMMIT_EVERY)
        end(story, dict.fromkeys(committed, 0))
        assert story.lives == 2


def test_sample_of_a_node_that_was_lost_before_continues_from_the_step_that_it_handed_over() -> None:
    with Story(1, tempo=SLOW) as story:
        story.until(lambda: sum(step >= COMMIT_EVERY for step in story.committed().values()) > 2)
        story.kill_for_good("spot-1")
        story.until(lambda: story.recorded(Released, reason=ReleaseReason.LOST))
        committed = story.committed()
        waiting = [event.request for event in story.recorded(Released, reason=ReleaseReason.LOST) if event.step]
        assert waiting
        story.crash_now()
        story.until(lambda: story.lives == 2)
        end(story, committed)


def test_weights_published_again_with_other_bits_make_their_samples_start_over() -> None:
    """Without deterministic mode another gang's weights differ in the last bits, and no sample may mix two."""
    with Story(tempo=SLOW, deterministic=False, output={"checkpoint_every": 3, "journal": {"sync": "never"}}) as story:
        story.until(lambda: story.recorded(IterationDone, iteration=0))
        story.until(lambda: sum(request.startswith("rollout/1/") for request in story.committed()) > 2)
        committed = [request for request in story.committed() if request.startswith("rollout/1/")]
        story.crash_now()
        story.storage.keep_weights([])
        story.end()
        (first, *_, again) = [event for event in story.recorded(Published) if str(event.weights) == "behaviour-1"]
        assert first.digest != again.digest
        leases = first_leases(story)
        assert {leases[request] for request in committed} == {0}
        made = {event.request: event.digest for event in story.recorded(Accepted)}
        assert {made[request] for request in committed} == {again.digest}
