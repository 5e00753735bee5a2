"""Training on complete groups while others are rolled out: after a crash between two parts the weights are the same.

Every group is a part. The first iteration has no lagged std, so it trains when all of it is rolled out.
"""

from functools import cache
from typing import Any

import pytest
from story import Story, When

from spotlight.core.events import (
    Accepted,
    AnyEvent,
    Compared,
    Issued,
    IterationDone,
    Leased,
    NoticeGiven,
    Restored,
    StepCommitted,
    WorkerLost,
)
from spotlight.core.work import NoticeKind
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.fault_policy import Tempo

SPOT = 2
GAP = {"pipeline": {"gap": True}}
LONG = {"rollout": {"prompts": 5, "group_size": 3, "steps": 6}}
"""Groups for more than one wave of rollouts."""
PARTS = 4
"""Parts of a step without the last one."""


@cache
def undisturbed(spot: int = SPOT, tag: bool = True) -> str:
    with Story(spot, **LONG, pipeline={"gap": True, "tag": tag}) as story:
        story.end()
        return story.theta


def parts(story: Story) -> int:
    """Parts accumulated so far, without the last part of each step."""
    return sum(count for (point, _), count in story.policy.passed.items() if point is CrashPoint.ACCUMULATED)


def is_between_parts(story: Story) -> bool:
    """True if a group of the second iteration is trained while others are not rolled out."""
    return parts(story) > PARTS and len(story.recorded(Compared)) == 1


def made_once(story: Story) -> bool:
    made = [event.request for event in story.recorded(Accepted)]
    return len(made) == len(set(made))


def reserved(story: Story) -> list[Leased]:
    return [event for event in story.recorded(Leased) if event.worker.startswith("reserved")]


def test_groups_are_trained_while_others_are_rolled_out_and_the_step_is_committed_once_all_are_compared() -> None:
    with Story(**LONG, **GAP) as story:
        story.until(lambda: is_between_parts(story))
        assert len(story.recorded(Accepted)) < 2 * 15
        story.end()
        assert [event.step for event in story.recorded(StepCommitted)] == [0, 1, 2]
        kinds = [type(event) for event in story.events if isinstance(event, Compared | StepCommitted)]
        assert kinds == [Compared, StepCommitted] * 3


@pytest.mark.parametrize("tag", [True, False])
def test_weights_do_not_depend_on_the_number_of_spot_nodes_or_the_order_of_completion(tag: bool) -> None:
    assert len({undisturbed(spot, tag) for spot in (1, 2, 3)} | {undisturbed()}) == 1


@pytest.mark.parametrize(
    "window", [CrashPoint.ACCUMULATING, CrashPoint.ACCUMULATED, CrashPoint.REPLY_SENT, CrashPoint.STEPPED]
)
@pytest.mark.parametrize("parts_before", [0, 1])
def test_gang_lost_between_two_parts_begins_the_step_anew_from_kept_samples(
    window: CrashPoint, parts_before: int
) -> None:
    with Story(**LONG, **GAP) as story:
        story.until(lambda: len(story.recorded(StepCommitted)) == 1 and parts(story) >= PARTS + parts_before)
        story.crash_at(window)
        story.end()
        assert story.recorded(WorkerLost)
        assert made_once(story)
        assert story.theta == undisturbed()


def test_gang_lost_while_it_waits_for_a_group_is_restored_before_the_group_is_there() -> None:
    slow = Tempo(step_s=4.0)
    with Story(**LONG, pipeline={"gap": True, "tag": False}, tempo=slow) as story:
        story.until(lambda: is_between_parts(story))
        story.kill("reserved-1")
        story.until(lambda: sum(point is CrashPoint.RESTORING for point, _ in story.policy.passed) == 2)
        assert len(story.recorded(Compared)) == 1
        story.end()
        assert made_once(story)
        assert story.theta == undisturbed(tag=False)


def test_gang_lost_after_steps_that_no_checkpoint_covers_takes_them_again_in_the_same_parts() -> None:
    with Story(**LONG, **GAP, output={"checkpoint_every": 3, "journal": {"sync": "never"}}) as story:
        story.until(lambda: len(story.recorded(StepCommitted)) == 2 and parts(story) > 2 * PARTS)
        story.kill("reserved-1")
        story.end()
        assert [event.step for event in story.recorded(Restored)] == [0]
        assert story.theta == undisturbed()


def test_spot_lost_while_the_last_group_of_a_part_is_in_flight_others_finish_it() -> None:
    with Story(**LONG, **GAP) as story:
        story.until(lambda: is_between_parts(story))
        done = {event.request for event in story.recorded(Accepted)}
        holder = next(
            event.worker
            for event in reversed(story.recorded(Leased))
            if event.worker.startswith("spot") and event.request not in done
        )
        story.kill_for_good(holder.partition(".")[0])
        story.end()
        assert made_once(story)
        assert story.theta == undisturbed()


def test_spot_drained_under_notice_between_two_parts_hands_its_flights_over() -> None:
    with Story(**LONG, **GAP) as story:
        story.until(lambda: is_between_parts(story))
        for name in ("spot-1", "spot-2"):
            story.warn(name, NoticeKind.IMMINENT, 1.0)
        story.until(lambda: len(story.recorded(NoticeGiven)) >= SPOT)
        story.wait(1.5)
        for name in ("spot-1", "spot-2"):
            story.kill_for_good(name)
        story.end()
        assert made_once(story)
        assert story.theta == undisturbed()


@pytest.mark.parametrize("record", [Accepted, Compared, StepCommitted, IterationDone, Issued])
@pytest.mark.parametrize("when", [When.BEFORE, When.AFTER])
def test_controller_dies_around_a_record_while_parts_are_trained(record: type[AnyEvent], when: When) -> None:
    with Story(**LONG, **GAP) as story:
        story.until(lambda: is_between_parts(story))
        story.crash_controller(when, record)
        story.end()
        assert story.lives == 2
        assert len(story.recorded(IterationDone)) == 3
        assert story.theta == undisturbed()


def test_without_tag_the_gang_never_rolls_out_evaluates_or_previews() -> None:
    for gap in (True, False):
        with Story(**LONG, pipeline={"gap": gap, "tag": False}) as story:
            story.end()
            assert not reserved(story)


def test_run_without_tag_continues_after_all_spot_nodes_are_lost_for_good() -> None:
    with Story(**LONG, pipeline={"gap": True, "tag": False}) as story:
        story.until(lambda: is_between_parts(story))
        for name in ("spot-1", "spot-2"):
            story.kill_for_good(name)
        story.end()
        assert reserved(story)
        assert story.theta == undisturbed(tag=False)


def test_with_tag_the_gang_helps_between_parts_and_hands_back_when_one_is_trainable() -> None:
    with Story(1, **LONG, **GAP, tempo=Tempo(train_s=0.5)) as story:
        story.end()
        steps = story.recorded(StepCommitted)
        assert reserved(story)
        assert len(steps) == 3
        assert story.theta == undisturbed(1)


G_S, UNITS = 2.4, 4
"""Seconds of a group (six steps of 0.4 s) and pairs of groups: each of two spot slots rolls out one at a time."""


def iterations_s(spot: int, train_s: float, prompts: int, group_size: int, **pipeline: float) -> list[float]:
    """Seconds of each iteration, without the time between iterations."""
    settings: dict[str, Any] = {
        "rollout": {"prompts": prompts, "group_size": group_size, "steps": 6},
        "explore": {"enabled": "off"},
        "algorithm": {"kind": "nft", "advantage": {"std": "group"}},
        "deterministic": False,
        "pipeline": pipeline,
    }
    tempo = Tempo(train_s=train_s, score_s=0.001, latency_s=0.0001, load_s=0.0)
    with Story(spot, rows=3, tempo=tempo, **settings) as story:
        story.end()
        return [done.rollout_s + done.train_s for done in story.recorded(IterationDone)]


@cache
def seconds_of(train_s: float, gap: bool, tag: bool) -> float:
    return iterations_s(SPOT, train_s, 2 * UNITS, 3, gap=gap, tag=tag, least_groups=2)[1]


@pytest.mark.parametrize("unit_s", [0.6, 2.4, 6.0])
def test_iteration_takes_the_seconds_that_the_arithmetic_of_the_pipeline_predicts(unit_s: float) -> None:
    serial, piped = (seconds_of(UNITS * unit_s, gap, tag=False) for gap in (False, True))
    assert serial == pytest.approx(UNITS * (G_S + unit_s), rel=0.02)
    assert piped == pytest.approx(G_S + (UNITS - 1) * max(G_S, unit_s) + unit_s, rel=0.02)


@pytest.mark.parametrize("unit_s", [0.2, 0.6, 1.2, 2.4, 6.0])
def test_help_of_the_trainer_never_makes_an_iteration_longer(unit_s: float) -> None:
    alone, helped = (seconds_of(UNITS * unit_s, gap=True, tag=tag) for tag in (False, True))
    assert helped <= alone * 1.001
    if unit_s <= 0.6:
        assert helped < 0.9 * alone


@pytest.mark.parametrize(
    ("prompts", "group_size", "unit_s", "asynchrony", "most"),
    [(2, 6, 4.0, False, 0.88), (8, 3, 1.2, True, 0.76), (2, 6, 4.0, True, 0.89)],
    ids=["the part that training waits for", "groups ahead while it starves", "groups ahead of the longest training"],
)
def test_help_of_the_trainer_shortens_the_run(
    prompts: int, group_size: int, unit_s: float, asynchrony: bool, most: float
) -> None:
    """Over three iterations, with one spot slot; how much shorter depends on which of two equal slots pulls first."""
    alone, helped = (
        sum(iterations_s(1, prompts * unit_s, prompts, group_size, gap=True, tag=tag, asynchrony=asynchrony))
        for tag in (False, True)
    )
    assert helped < most * alone
