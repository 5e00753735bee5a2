"""The planner where slots are missing: previews beside and after training, by their gain per second."""

import msgspec
import pytest
from test_planner import SAMPLING, compared

from spotlight.control.explore.config import ExploreConfig
from spotlight.control.explore.planner import PlanInput, Planner
from spotlight.core.events import ExplorationClosed, Issued, IterationDone
from spotlight.core.types import PromptId, Sample, Version
from spotlight.core.work import Request, Work

BANDIT = ExploreConfig(plan="bandit", arms=(3, 4, 6, 8), alpha=0.5)
PROMPTS = tuple(PromptId(name) for name in "abcd")
FULL = PlanInput(iteration=1, group_size=16, full_steps=10, prompts=PROMPTS, speeds=())
TRAINED = IterationDone(iteration=0, rollout_s=1.0, train_s=0.0, reward=0.5)
FLAT, VARIED = (0.5, 0.5), (0.2, 0.9)


def held_out(samples):
    """Held-out samples of 10 steps each."""
    sample = Sample(prompt=PROMPTS[0], seed=0, sampling=SAMPLING, version=Version(1))
    return Issued(
        requests=tuple(
            Request(work=Work.EVALUATION, iteration=1, group=group, sample=sample) for group in range(samples)
        )
    )


def short(train_s, settings=None, speeds=(), slots=8, events=(), **changes):
    """The plan of a run whose four trainers do 400 row-steps per second and that lacks slots beside them."""
    trained = msgspec.structs.replace(TRAINED, train_s=train_s)
    planner = Planner.replay(settings or ExploreConfig(), [trained, *events])
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


def test_flat_prompt_does_not_disable_the_ordinary_plan_of_slots_that_suffice():
    events = [event for iteration in range(9) for event in compared(iteration, (FLAT, VARIED, VARIED, VARIED))]
    plan = short(60.0, speeds=(100.0,) * 7, events=events)
    assert (plan.seeds, plan.reason) == ((128,) * 4, "the plan is fixed")


@pytest.mark.parametrize(("slots", "lack"), [(0, "no slot is free beside training"), (8, "slots are missing")])
def test_reason_says_that_slots_are_missing_only_if_the_run_has_such_slots(slots, lack):
    assert short(60.0, slots=slots).reason.startswith(lack)
    assert short(0.1, slots=slots).reason.startswith(lack)


def test_reason_of_a_run_without_varied_prompts_is_that_nothing_can_be_selected():
    events = [event for iteration in range(9) for event in compared(iteration, (FLAT,) * 4)]
    assert "nothing to select" in short(60.0, events=events).reason


def test_held_out_samples_take_the_time_of_previews_beside_training():
    """One slot does 6000 row-steps in a minute: all previews of four prompts, unless 500 samples come first."""
    assert short(60.0, speeds=(100.0,)).awaited_s == 0
    assert short(60.0, speeds=(100.0,), events=[held_out(500)]).awaited_s > 1.0


@pytest.mark.parametrize(("slower", "samples"), [(1.0, 0), (1.0, 100), (1.0, 1500), (1.5, 0), (1.5, 100)])
@pytest.mark.parametrize("slots", [0, 1, 2])
def test_costs_of_previews_are_learned_where_slots_are_missing(slots, slower, samples):
    """A run with 0 to 2 of 8 slots beside its trainers; true previews cost `slower` times the prior."""
    planner, train_s, given = Planner(ExploreConfig(steps=5)), 20.0, msgspec.structs.replace(FULL, slots=8)
    true_cost = 6.0 * slower
    for iteration in range(1, 25):
        planner.apply(msgspec.structs.replace(TRAINED, iteration=iteration - 1, train_s=train_s))
        planner.apply(held_out(samples))
        speeds = (100.0,) * slots
        asked = {"iteration": iteration, "speeds": speeds, "all_speeds": (100.0,) * 4 + speeds}
        plan = planner.plan(msgspec.structs.replace(given, **asked))
        planner.apply(plan)
        work, beside = sum(plan.seeds) * true_cost + samples * 10, slots * 100
        after_s = max(0.0, work - beside * train_s) / (400 + beside)
        seconds = train_s + after_s if after_s else work / beside
        planner.apply(ExplorationClosed(iteration=iteration, finished=sum(plan.seeds), discarded=0, seconds=seconds))
    assert sum(plan.seeds) > 0
    assert planner.relative_error == pytest.approx(0.0, abs=0.03)
    assert planner.state.time.row_steps(5) == pytest.approx(true_cost, rel=0.1)


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
