"""Outside of deterministic mode a gang that takes a step again comes to other last bits: no group mixes the two."""

import pytest
from story import Story, When

from spotlight.core.events import Accepted, Compared, IterationDone, Published, Reopened
from spotlight.core.types import Version
from spotlight.core.work import WeightsId

ITERATIONS = 3
NEWEST = WeightsId(Version(2))


def inexact() -> Story:
    """Nothing is checkpointed before the end, so a restart takes every step again."""
    output = {"checkpoint_every": ITERATIONS, "journal": {"sync": "never"}}
    return Story(iterations=ITERATIONS, deterministic=False, output=output)


def crash_with_a_part_of_the_last_iteration_accepted(story: Story) -> list[Accepted]:
    """The controller dies with some of its samples accepted; returns these, before it comes back."""
    story.until(lambda: len(story.said(IterationDone)) == ITERATIONS - 1)
    before = len(story.said(Accepted))
    story.crash(When.AFTER, Accepted, number=2)
    while len(story.said(Accepted)) < before + 2:
        story.wait(0.05)
    return story.said(Accepted)[before:]


def test_sample_of_an_old_iteration_made_again_leaves_the_weights_of_the_newest_in_place() -> None:
    with inexact() as story:
        kept = crash_with_a_part_of_the_last_iteration_accepted(story)
        (lost, *_) = story.storage.payloads()
        story.storage.lose(lost)
        story.invariants.damaged.add(lost)
        story.end()
        assert [event.request.split("/")[1] for event in story.said(Reopened)] == ["0"]
        assert len(story.said(Published, weights=NEWEST)) == 1
        newest = [event for event in story.said(Accepted) if event.request.startswith("rollout/2/")]
        assert {event.digest for event in newest} == {kept[0].digest}
        assert [event for event in newest if event.request in {one.request for one in kept}] == kept


def test_weights_that_come_out_otherwise_make_their_accepted_samples_wanted_again() -> None:
    with inexact() as story:
        kept = crash_with_a_part_of_the_last_iteration_accepted(story)
        story.storage.keep_weights([])
        story.invariants.damaged.update(event.payload for event in kept)
        story.end()
        first, again = story.said(Published, weights=NEWEST)
        assert first.digest != again.digest
        assert {event.request for event in story.said(Reopened)} == {event.request for event in kept}
        for event in kept:
            assert [made.digest for made in story.said(Accepted, request=event.request)] == [first.digest, again.digest]


def test_weights_that_come_out_otherwise_after_their_samples_were_compared_stop_the_run() -> None:
    with inexact() as story:
        story.until(lambda: len(story.said(IterationDone)) == ITERATIONS - 1)
        story.crash(When.AFTER, Compared)
        while len(story.said(Compared)) < ITERATIONS:
            story.wait(0.05)
        story.storage.keep_weights([])
        with pytest.raises(AssertionError, match=r"behaviour-2 .* are gone .* put that file back and resume"):
            story.end()
