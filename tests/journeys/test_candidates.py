"""Prompts chosen by scouts: after any crash the same prompts are trained on, with the same weights."""

from functools import cache
from typing import Any

import pytest
from story import Story, When

from spotlight.controller import exploration
from spotlight.core.events import AnyEvent, ExplorationClosed, Planned, Previewed, Selected, StepCommitted
from spotlight.core.work import Work
from spotlight.sim.fault_policy import Tempo

SCOUTS, SEEDS, PROMPTS, CANDIDATES = 3, 6, 2, 4
CHOOSING: dict[str, Any] = {
    "explore": {
        "enabled": "on",
        "candidates": CANDIDATES / PROMPTS,
        "scouts": SCOUTS,
        "seeds": SEEDS,
        "steps": 2,
        "audit_share": 0.01,
    }
}
SCOUTED = CANDIDATES * SCOUTS
ALL = SCOUTED + PROMPTS * (SEEDS - SCOUTS)
SLOW_TRAINING = Tempo(train_s=8.0)


@cache
def undisturbed() -> tuple[str, tuple[tuple[int, ...], ...]]:
    with Story(**CHOOSING, tempo=SLOW_TRAINING) as story:
        story.end()
        return story.theta, chosen(story)


def chosen(story: Story) -> tuple[tuple[int, ...], ...]:
    """Candidates that were rolled out, by iteration."""
    return tuple(event.prompts for event in story.recorded(Selected))


def issued(story: Story) -> int:
    """Previews of iteration 1 so far."""
    return len(story.hub.dispatcher.ledger.iteration(1, Work.PREVIEW))


def test_every_planned_preview_is_drawn_and_only_those_of_the_chosen_candidates_beyond_the_scouts() -> None:
    with Story(**CHOOSING, tempo=SLOW_TRAINING) as story:
        story.end()
        assert [event.finished for event in story.recorded(ExplorationClosed)] == [ALL, ALL]
        assert {event.previews for event in story.recorded(Planned)} == {ALL}
        for previewed, selected in zip(story.recorded(Previewed), story.recorded(Selected), strict=True):
            counts = {number: previewed.groups.count(number) for number in range(CANDIDATES)}
            assert counts == {n: SEEDS if n in selected.prompts else SCOUTS for n in range(CANDIDATES)}
    assert any(prompts != (0, 1) for prompts in undisturbed()[1])


@pytest.mark.parametrize("drawn", [SCOUTED, ALL], ids=["scouting", "deepening"])
def test_spot_machines_vanish_in_either_round_and_the_same_prompts_are_chosen(drawn: int) -> None:
    with Story(**CHOOSING, tempo=SLOW_TRAINING) as story:
        story.until(lambda: story.recorded(Planned) and issued(story) == drawn)
        story.kill("spot-1")
        story.kill("spot-2")
        report = story.end()
        assert report.workers_lost == 2
        assert (story.theta, chosen(story)) == undisturbed()


@pytest.mark.parametrize("when", list(When))
@pytest.mark.parametrize("kind", [Planned, Previewed, Selected])
def test_controller_dies_around_a_choice_and_makes_it_again(when: When, kind: type[AnyEvent]) -> None:
    with Story(**CHOOSING, tempo=SLOW_TRAINING) as story:
        story.crash_controller(when, kind)
        story.end()
        assert story.lives == 2
        assert (story.theta, chosen(story)) == undisturbed()


def test_controller_dies_while_the_chosen_candidates_are_deepened_and_scouts_again() -> None:
    with Story(**CHOOSING, tempo=Tempo(train_s=1.9)) as story:
        story.until(lambda: story.recorded(Planned) and issued(story) == ALL)
        story.crash_controller(When.AFTER, StepCommitted)
        story.until(lambda: story.lives == 2)
        assert not story.recorded(Previewed)
        story.end()
        assert (story.theta, chosen(story)) == undisturbed()


def test_training_ends_among_the_scouts_and_no_second_round_begins() -> None:
    quick = Tempo(train_s=0.05, step_s=1.0)
    with Story(**CHOOSING, tempo=quick, deterministic=False) as story:
        story.end()
        closed = story.recorded(ExplorationClosed)
        assert closed
        assert all(event.discarded and event.finished + event.discarded <= SCOUTED for event in closed)
        assert all(len(event.seeds) == PROMPTS for event in story.recorded(Selected))


def test_error_in_the_second_round_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> tuple[int, ...]:
        raise RuntimeError("no candidate can be chosen")

    monkeypatch.setattr(exploration, "most_varied", broken)
    with Story(**CHOOSING, tempo=SLOW_TRAINING) as story, pytest.raises(RuntimeError, match="no candidate"):
        story.end()
