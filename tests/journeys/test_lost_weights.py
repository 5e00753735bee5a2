"""Without deterministic mode a repeated step gives weights with other bits: no group mixes the two."""

import pytest
from story import Story, When

from spotlight.core.events import Accepted, Compared, IterationDone, Published, Reopened
from spotlight.core.types import Version
from spotlight.core.work import WeightsId

ITERATIONS = 3
NEWEST = WeightsId(Version(2))


def inexact() -> Story:
    """A run that is not deterministic, without checkpoints before its end: a restart repeats every step."""
    output = {"checkpoint_every": ITERATIONS, "journal": {"sync": "never"}}
    return Story(iterations=ITERATIONS, deterministic=False, output=output)


def crash_with_a_part_of_the_last_iteration_accepted(story: Story) -> list[Accepted]:
    """Crash the controller with some samples accepted; returns these before the controller restarts."""
    story.until(lambda: len(story.recorded(IterationDone)) == ITERATIONS - 1)
    before = len(story.recorded(Accepted))
    story.crash_controller(When.AFTER, Accepted, number=2)
    while len(story.recorded(Accepted)) < before + 2:
        story.wait(0.05)
    return story.recorded(Accepted)[before:]


def test_sample_of_an_old_iteration_made_again_does_not_change_the_newest_weights() -> None:
    with inexact() as story:
        kept = crash_with_a_part_of_the_last_iteration_accepted(story)
        (lost, *_) = story.storage.payloads()
        story.storage.lose(lost)
        story.invariants.damaged.add(lost)
        story.end()
        assert [event.request.split("/")[1] for event in story.recorded(Reopened)] == ["0"]
        assert len(story.recorded(Published, weights=NEWEST)) == 1
        newest = [event for event in story.recorded(Accepted) if event.request.startswith("rollout/2/")]
        assert {event.digest for event in newest} == {kept[0].digest}
        assert [event for event in newest if event.request in {one.request for one in kept}] == kept


def test_repeated_weights_with_other_bits_reopen_their_accepted_samples() -> None:
    with inexact() as story:
        kept = crash_with_a_part_of_the_last_iteration_accepted(story)
        story.storage.keep_weights([])
        story.invariants.damaged.update(event.payload for event in kept)
        story.end()
        first, again = story.recorded(Published, weights=NEWEST)
        assert first.digest != again.digest
        assert {event.request for event in story.recorded(Reopened)} == {event.request for event in kept}
        for event in kept:
            assert [made.digest for made in story.recorded(Accepted, request=event.request)] == [
                first.digest,
                again.digest,
            ]


def test_repeated_weights_with_other_bits_stop_the_run_once_their_samples_were_compared() -> None:
    with inexact() as story:
        story.until(lambda: len(story.recorded(IterationDone)) == ITERATIONS - 1)
        story.crash_controller(When.AFTER, Compared)
        while len(story.recorded(Compared)) < ITERATIONS:
            story.wait(0.05)
        story.storage.keep_weights([])
        with pytest.raises(AssertionError, match=r"behaviour-2 .* are gone .* put that file back and resume"):
            story.end()
