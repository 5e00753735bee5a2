"""The planner where slots are missing: previews beside and after training, by their gain per second."""

import msgspec
import pytest

from spotlight.control.explore.config import ExploreConfig
from spotlight.control.explore.planner import PlanInput, Planner
from spotlight.core.events import IterationDone
from spotlight.core.types import PromptId

BANDIT = ExploreConfig(plan="bandit", arms=(3, 4, 6, 8), alpha=0.5)
PROMPTS = tuple(PromptId(name) for name in "abcd")
FULL = PlanInput(iteration=1, group_size=16, full_steps=10, prompts=PROMPTS, speeds=())
TRAINED = IterationDone(iteration=0, rollout_s=1.0, train_s=0.0, reward=0.5)


def short(train_s, settings=None, speeds=(), slots=8, **changes):
    """The plan of a run whose four trainers do 400 row-steps per second and that lacks slots beside them."""
    planner = Planner.replay(settings or ExploreConfig(), [msgspec.structs.replace(TRAINED, train_s=train_s)])
    asked = {"speeds": speeds, "all_speeds": (100.0,) * 4 + speeds, "slots": slots, **changes}
    return planner.plan(msgspec.structs.replace(FULL, **asked))


def test_run_without_free_slots_previews_after_long_training_and_not_after_short():
    """An iteration of 640 samples' steps takes 1.8 s: previews pay beside minutes of training."""
    paying = short(60.0)
    assert paying.awaited_s > 1.0
    assert all(paying.seeds)
    assert "slots are missing" in paying.reason
    none = short(0.1)
    assert (none.seeds, none.awaited_s) == ((0,) * 4, 0.0)
    assert "would gain less than they cost" in none.reason


def test_training_that_overlaps_rollouts_counts_for_what_an_iteration_takes():
    """With `pipeline.gap` a minute of training may leave a tenth of a second after the last rollout."""
    overlapped = Planner.replay(ExploreConfig(), [msgspec.structs.replace(TRAINED, rollout_s=60.0, train_s=0.1)])
    plan = overlapped.plan(msgspec.structs.replace(FULL, all_speeds=(100.0,) * 4, slots=8))
    assert plan.seeds == short(60.0).seeds


@pytest.mark.parametrize("settings", [ExploreConfig(), BANDIT], ids=["fixed", "bandit"])
def test_longer_training_makes_more_previews_worth_their_wait(settings):
    counts = [sum(short(train_s, settings).seeds) for train_s in (2.0, 10.0, 60.0, 600.0)]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_plan_with_few_slots_explores_few_prompts_well_instead_of_all_in_vain():
    """One of eight slots previews 20 seeds while the gang trains: five per prompt would select nothing of 16."""
    plan = short(2.0, speeds=(100.0,))
    explored = [count for count in plan.seeds if count]
    assert 0 < len(explored) < 4
    assert min(explored) > 16


def test_plan_of_a_whole_fleet_awaits_nothing_whatever_it_would_gain():
    plan = short(60.0, speeds=(100.0,) * 8)
    assert (plan.seeds, plan.awaited_s) == ((128,) * 4, 0.0)


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        (ExploreConfig(overrun=0), {}),
        (ExploreConfig(candidates=2), {}),
        (ExploreConfig(), {"stale_share": 0.5}),
        (ExploreConfig(), {"all_speeds": (None,) * 4}),
    ],
    ids=["no overrun", "candidates", "asynchrony", "unmeasured"],
)
def test_missing_slots_are_not_made_up_for_where_the_gain_is_not_known_or_not_wanted(settings, changes):
    plan = short(60.0, settings, **changes)
    assert not any(plan.seeds)
    assert "no slot" in plan.reason
