"""Advantages measured from the prompt's mean: audits enter the mean, never the loss, also after crashes."""

import math
from functools import cache
from statistics import fmean
from typing import Any

import pytest
from story import Story, When

from spotlight.core.events import (
    Accepted,
    Compared,
    Dropped,
    Issued,
    IterationDone,
    Leased,
    Previewed,
    Released,
    Selected,
    StepCommitted,
)
from spotlight.core.work import Request, Work
from spotlight.sim.crash_points import CrashPoint

EXPLORE = {"enabled": "on", "seeds": 12, "steps": 2, "audit_share": 0.5}
ROLLOUT = {"prompts": 4, "group_size": 3, "steps": 6}
PIPELINES: dict[str, dict[str, Any]] = {
    "serial": {},
    "gap": {"gap": True},
    "gap without help": {"gap": True, "tag": False},
    "asynchrony": {"gap": True, "asynchrony": True, "stale_share": 0.5},
}


def baseline_story(pipeline: dict[str, Any], baseline: str = "audited", spot: int = 2, **config: Any) -> Story:
    explore = {**EXPLORE, "baseline": baseline}
    return Story(spot, **{"explore": explore, "rollout": ROLLOUT, "pipeline": pipeline, **config})


def requests_by_group(story: Story, iteration: int, work: Work) -> dict[int, list[Request]]:
    """Requests of each group, in the order of issue."""
    groups: dict[int, list[Request]] = {}
    for request in (request for event in story.recorded(Issued) for request in event.requests):
        if (request.iteration, request.work) == (iteration, work):
            groups.setdefault(request.group, []).append(request)
    return groups


def rewards(story: Story, requests: list[Request]) -> list[float]:
    """Rewards of the requests that have one; a sample that was made again has its last reward."""
    found = {event.request: event.reward for event in story.recorded(Accepted)}
    dropped = {event.request for event in story.recorded(Dropped)}
    known = [found[request.id] for request in requests if request.id in found and request.id not in dropped]
    return [reward for reward in known if math.isfinite(reward)]


def centre(compared: Compared, group: int) -> float:
    """The reward with an advantage of 0, interpolated from two samples whose rewards differ."""
    pairs = list(zip(compared.rewards[group], compared.advantages[group], compared.kept[group], strict=True))
    known = sorted((reward, advantage) for reward, advantage, kept in pairs if kept)
    (low, below), (high, above) = known[0], known[-1]
    return low - below * (high - low) / (above - below)


def means(story: Story, compared: Compared, group: int) -> tuple[float, float]:
    """Mean of the group, and mean of all seeds of its prompt as the audit estimates it."""
    (selected,) = story.recorded(Selected, iteration=compared.iteration)
    previewed = [event for event in story.recorded(Previewed) if event.iteration == compared.iteration]
    seen = {seed for event in previewed for g, seed in zip(event.groups, event.seeds, strict=True) if g == group}
    left = len(seen - set(selected.seeds[group]))
    kept = rewards(story, requests_by_group(story, compared.iteration, Work.ROLLOUT)[group])
    audited = rewards(story, requests_by_group(story, compared.iteration, Work.AUDIT).get(group, []))
    if left and not audited:
        return fmean(kept), fmean(kept)
    size = len(selected.seeds[group])
    whole = (size * fmean(kept) + left * (fmean(audited) if left else 0.0)) / (size + left)
    return fmean(kept), whole


def compared_groups(story: Story) -> list[tuple[Compared, int]]:
    """Groups with different rewards, in the iterations whose seeds were selected."""
    return [
        (event, group)
        for event in story.recorded(Compared)
        for group, known in enumerate(event.rewards)
        if event.iteration and len({reward for reward in known if math.isfinite(reward)}) > 1
    ]


@cache
def undisturbed(pipeline: str, spot: int = 2) -> str:
    with baseline_story(PIPELINES[pipeline], spot=spot) as story:
        story.end()
        return story.theta


@pytest.mark.parametrize(
    ("name", "spot"), [*((name, 2) for name in PIPELINES), ("serial", 0), ("gap", 0), ("asynchrony", 0)]
)
def test_advantages_are_measured_from_the_mean_of_all_seeds_and_audits_are_never_trained_on(name, spot):
    with baseline_story(PIPELINES[name], spot=spot) as story:
        story.end()
        groups = compared_groups(story)
        assert len(groups) > 4
        for compared, group in groups:
            _, whole = means(story, compared, group)
            assert centre(compared, group) == pytest.approx(whole), (compared.iteration, group)
        assert any(abs(kept - whole) > 0.02 for kept, whole in (means(story, *place) for place in groups))
        trained = {request for event in story.recorded(StepCommitted) for request in event.requests}
        assert trained
        assert all(request.startswith(Work.ROLLOUT.value) for request in trained)


@pytest.mark.parametrize("name", PIPELINES)
def test_kept_baseline_is_the_mean_of_the_group_and_leads_to_other_weights(name):
    with baseline_story(PIPELINES[name], "kept") as story:
        story.end()
        for compared, group in compared_groups(story):
            assert centre(compared, group) == pytest.approx(means(story, compared, group)[0])
        assert story.theta != undisturbed(name)


def test_first_iteration_has_no_selected_seeds_and_its_groups_have_their_own_means():
    with baseline_story({}) as story:
        story.end()
        first = story.recorded(Compared)[0]
        assert first.iteration == 0
        for group in range(len(first.rewards)):
            assert centre(first, group) == pytest.approx(fmean(first.rewards[group]))


@pytest.mark.parametrize("when", list(When), ids=lambda when: when.value)
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("name", ["serial", "gap"])
def test_controller_that_dies_while_rollouts_and_audits_are_issued_compares_the_same(name, when, number):
    """Two records: the rollouts of the iteration, then its audits; a crash between them loses neither."""
    with baseline_story(PIPELINES[name]) as story:
        story.until(lambda: story.recorded(Selected, iteration=1))
        story.crash_controller(when, Issued, number)
        story.end()
        assert story.lives == 2
        assert story.theta == undisturbed(name)


@pytest.mark.parametrize("name", ["serial", "gap", "asynchrony"])
def test_audit_of_a_dead_worker_is_made_elsewhere_and_the_weights_are_the_same(name):
    with baseline_story(PIPELINES[name]) as story:
        story.until(lambda: [event for event in story.recorded(Leased) if event.request.startswith("audit")])
        (first, *_) = [event for event in story.recorded(Leased) if event.request.startswith("audit")]
        story.crash_at(CrashPoint.AT_BOUNDARY, first.worker)
        story.end()
        assert first.request in {event.request for event in story.recorded(Released)}
        assert story.theta == undisturbed(name)


@pytest.mark.parametrize("name", ["serial", "gap"])
def test_controller_that_dies_before_and_after_the_comparison_compares_once_and_the_same(name):
    for when in (When.BEFORE, When.AFTER):
        with baseline_story(PIPELINES[name]) as story:
            story.until(lambda story=story: story.recorded(Selected, iteration=1))
            story.crash_controller(when, Compared)
            story.end()
            assert len(story.recorded(Compared, iteration=1)) == 1
            assert story.theta == undisturbed(name)


def audits_of_the_second_iteration(pipeline: dict[str, Any]) -> list[Request]:
    with baseline_story(pipeline) as story:
        story.end()
        return [request for group in requests_by_group(story, 1, Work.AUDIT).values() for request in group]


@pytest.mark.parametrize("policy", ["impossible", "unscorable"])
@pytest.mark.parametrize("name", ["serial", "gap"])
def test_audits_that_fail_or_have_no_reward_are_left_out_and_a_group_without_any_has_its_own_mean(name, policy):
    """Every audit of group 0 fails, and one of another group."""
    audits = audits_of_the_second_iteration(PIPELINES[name])
    lost = [request for request in audits if request.group == 0]
    other = next(request for request in audits if request.group != 0)
    with baseline_story(PIPELINES[name]) as story:
        getattr(story.policy, policy).update({request.id for request in (*lost, other)})
        story.end()
        (compared,) = story.recorded(Compared, iteration=1)
        for group in range(len(compared.rewards)):
            kept, whole = means(story, compared, group)
            assert centre(compared, group) == pytest.approx(kept if group == 0 else whole)
        assert len(story.recorded(IterationDone)) == 3
