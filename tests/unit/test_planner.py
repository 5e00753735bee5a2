"""The planner: its plan in each situation, what it learns, and that events alone restore it."""

import math

import msgspec
import numpy as np
import pytest

from spotlight.control.explore.config import ExploreConfig
from spotlight.control.explore.gain import Variances
from spotlight.control.explore.planner import PlanInput, Planner, PlannerState
from spotlight.core.events import (
    Compared,
    ExplorationClosed,
    Fidelity,
    Issued,
    IterationDone,
    Previewed,
    Selected,
    WorkerJoined,
    WorkerLost,
)
from spotlight.core.types import NodeId, PromptId, Sample, Sampling, Size, Version, WorkerId
from spotlight.core.work import Request, SlotClass, Work

PROMPTS = tuple(PromptId(name) for name in "abcd")
SAMPLING = Sampling(steps=10, size=Size(32, 96))
BANDIT = ExploreConfig(plan="bandit", arms=(3, 4, 6, 8), alpha=0.5)


def given(iteration=1, speeds=(100.0, 100.0), prompts=PROMPTS, stale_share=0.0):
    return PlanInput(
        iteration=iteration, group_size=16, full_steps=10, prompts=prompts, speeds=speeds, stale_share=stale_share
    )


def trained(seconds, iteration=0):
    return IterationDone(iteration=iteration, rollout_s=1.0, train_s=seconds, reward=0.5)


def audit(steps, rho, iteration=1):
    return Fidelity(iteration=iteration, steps=steps, figures={"pearson": rho, "audited": 40.0, "pairs": 100.0})


def compared(iteration, rewards):
    """An iteration whose groups, one per prompt, had these rewards."""
    requests = tuple(
        Request(
            work=Work.ROLLOUT,
            iteration=iteration,
            group=group,
            sample=Sample(prompt=prompt, seed=seed, sampling=SAMPLING, version=Version(iteration)),
        )
        for group, prompt in enumerate(PROMPTS)
        for seed in range(2)
    )
    done = Compared(iteration=iteration, rewards=rewards, advantages=rewards, kept=((True, True),) * len(rewards))
    return [Issued(requests=requests), done]


# -- plans -------------------------------------------------------------------------------------------------------------


def test_fixed_plan_gives_every_prompt_the_same():
    plan = Planner(ExploreConfig(seeds=64, steps=6)).plan(given())
    assert (plan.seeds, plan.steps, plan.iteration) == ((64,) * 4, 6, 1)


def test_fixed_plan_with_scouts_counts_and_predicts_only_what_is_drawn():
    unscouted, scouted = (
        Planner(ExploreConfig(seeds=64, steps=6, candidates=2, scouts=scouts)).plan(given()) for scouts in (0, 16)
    )
    assert scouted.seeds == unscouted.seeds == (64,) * 4
    assert (unscouted.previews, scouted.previews) == (4 * 64, 4 * 16 + 2 * 48)
    assert scouted.predicted_s < 0.7 * unscouted.predicted_s


def test_fixed_plan_of_no_more_seeds_than_are_kept_plans_none_with_a_reason():
    plan = Planner(ExploreConfig(seeds=16)).plan(given())
    assert plan.seeds == (0,) * 4
    assert "explore.seeds is 16" in plan.reason


def test_plan_without_free_slots_previews_nothing():
    for settings in (ExploreConfig(), BANDIT):
        plan = Planner.replay(settings, [trained(60.0)]).plan(given(speeds=()))
        assert not any(plan.seeds)
        assert "no slot" in plan.reason


def test_plan_before_anything_was_measured_is_the_fixed_one():
    plan = Planner(BANDIT).plan(given(speeds=(None, None)))
    assert plan.seeds == (BANDIT.seeds,) * 4
    assert "not known yet" in plan.reason


def test_plan_before_the_first_training_has_ended_guesses_its_time_from_the_rollouts():
    slow, fast = (Planner(BANDIT).plan(given(speeds=(speed,))) for speed in (50.0, 100.0))
    assert slow.budget_s == pytest.approx(2 * fast.budget_s)
    assert slow.seeds == fast.seeds
    assert any(slow.seeds)
    assert "not known yet" in slow.reason


def test_plan_by_default_holds_somewhat_more_than_is_predicted_to_fit():
    plan = Planner.replay(BANDIT, [trained(20.0)]).plan(given())
    assert 20.0 < plan.predicted_s <= 25.0


@pytest.mark.parametrize("waiting", [{"timing": "inline"}, {"overrun": 0.1}], ids=["inline", "overrun"])
def test_plan_that_training_waits_for_holds_no_more_than_fits(waiting):
    planner = Planner.replay(ExploreConfig(plan="bandit", **waiting), [trained(2.5)])
    plan = planner.plan(given())
    assert 0 in plan.seeds
    assert plan.predicted_s <= plan.budget_s == pytest.approx(2.5)


def test_plan_where_rollouts_may_begin_ahead_leaves_them_the_end_of_the_window_and_no_reserve():
    """Training of 6 s beside rollouts of 3.2 s: 2.8 s cost nothing, and previews are not worth all that is beyond."""
    planner = Planner.replay(BANDIT, [trained(6.0)])
    lost, weighed = planner.plan(given()), planner.plan(given(stale_share=1.0))
    assert 0 < sum(weighed.seeds) < sum(lost.seeds)
    assert weighed.predicted_s <= weighed.budget_s < 6.0 < lost.predicted_s
    assert weighed.budget_s >= 2.8
    assert "ahead of the weights" in weighed.reason


def test_plan_takes_what_the_stale_share_cannot_use_of_a_long_window():
    """Half of the rollouts are 1.6 s, so that of 40 s all others are free for previews."""
    planner = Planner.replay(BANDIT, [trained(40.0)])
    plan = planner.plan(given(stale_share=0.5))
    assert 38.4 <= plan.budget_s <= 40.0


def test_plan_beside_rollouts_that_begin_ahead_leaves_held_out_samples_their_time():
    """400 samples of 10 steps take 20 s of the 40 s."""
    sample = Sample(prompt=PROMPTS[0], seed=0, sampling=SAMPLING, version=Version(1))
    held_out = tuple(Request(work=Work.EVALUATION, iteration=1, group=group, sample=sample) for group in range(400))
    planner = Planner.replay(BANDIT, [trained(40.0), Issued(requests=held_out)])
    assert 18.4 <= planner.plan(given(stale_share=0.5)).budget_s <= 20.0


def test_plan_of_previews_that_rank_nothing_leaves_the_window_to_rollouts():
    planner = Planner.replay(BANDIT, [trained(3.0), *(audit(steps, 0.0) for steps in (3, 4, 6, 8) for _ in range(9))])
    plan = planner.plan(given(stale_share=1.0))
    assert sum(plan.seeds) == 0


def test_groups_that_are_issued_in_two_events_are_learned_from_together():
    issued, done = compared(0, ((0.1, 0.9), (0.5, 0.5), (0.2, 0.4), (0.0, 1.0)))
    stale = [request for request in issued.requests if request.group in (1, 3)]
    fresh = [request for request in issued.requests if request.group in (0, 2)]
    apart = [Issued(requests=tuple(stale)), Issued(requests=tuple(fresh)), done]
    assert Planner.replay(BANDIT, apart).state == Planner.replay(BANDIT, [issued, done]).state


def test_plan_fits_the_training_time_with_its_margin():
    planner = Planner.replay(BANDIT.model_copy(update={"margin": 0.1}), [trained(20.0)])
    plan = planner.plan(given())
    assert plan.budget_s == pytest.approx(18.0)
    assert 0.9 * plan.budget_s < plan.predicted_s <= plan.budget_s
    assert "promise" in plan.reason


def test_plan_too_short_for_a_choice_names_the_count_of_previews_that_fit():
    plan = Planner.replay(BANDIT, [trained(0.2)]).plan(given())
    assert not any(plan.seeds)
    assert "a group keeps 16" in plan.reason


def test_plan_with_little_time_explores_few_prompts_well_instead_of_all_badly():
    plan = Planner.replay(BANDIT, [trained(2.5)]).plan(given())
    assert any(plan.seeds)
    assert all(seeds > 24 for seeds in plan.seeds)
    assert plan.predicted_s > 1.5 * plan.budget_s
    assert "promise" in plan.reason


def test_plan_with_more_slots_takes_more_steps():
    planner = Planner.replay(ExploreConfig(plan="bandit"), [trained(8.0)])
    few, many = planner.plan(given(speeds=(50.0,))), planner.plan(given(speeds=(50.0,) * 40))
    assert few.steps < many.steps
    assert sum(few.seeds) < sum(many.seeds)


def test_plan_counts_a_slot_without_measured_speed_as_an_average_one():
    planner = Planner.replay(BANDIT, [trained(8.0)])
    assert planner.plan(given(speeds=(100.0, None))) == planner.plan(given(speeds=(100.0, 100.0)))


def test_plan_moves_to_fewer_steps_when_audits_show_that_few_rank_well_and_back_when_they_do_not():
    start = Planner.replay(BANDIT, [trained(4.0)])
    well = [audit(steps, 0.9) for steps in BANDIT.arms] * 6
    badly = [audit(3, 0.05), audit(8, 0.9)] * 10
    few = Planner.replay(BANDIT, [trained(4.0), *well])
    many = Planner.replay(BANDIT, [trained(4.0), *well, *badly])
    assert few.plan(given()).steps < start.plan(given()).steps <= many.plan(given()).steps


def test_plan_gives_a_prompt_that_never_varies_nothing_until_it_does():
    flat, lively = (0.5, 0.5), (0.2, 0.9)
    events = [trained(3.0)]
    for iteration in range(2):
        events += compared(iteration, (flat, lively, lively, lively))
    planner = Planner.replay(BANDIT, events)
    plan = planner.plan(given(prompts=PROMPTS[:2]))
    assert plan.seeds[0] == 0 < plan.seeds[1]
    for event in compared(2, (lively,) * 4):
        planner.apply(event)
    assert planner.plan(given(prompts=PROMPTS[:1])).seeds[0] > 0


def test_plan_where_no_prompt_varies_has_a_reason():
    events = [trained(3.0)]
    for iteration in range(3):
        events += compared(iteration, ((0.5, 0.5),) * 4)
    plan = Planner.replay(BANDIT, events).plan(given())
    assert not any(plan.seeds)
    assert "nothing to select" in plan.reason


def test_variances_favour_a_prompt_that_varied_more_and_shrink_a_single_visit():
    known = Variances().updated(PROMPTS[:2], [(0.0, 1.0), (0.4, 0.6)], (1.0, 1.0))
    assert known.of(PROMPTS[0]) > known.of(PROMPTS[2]) > known.of(PROMPTS[1]) > 0
    assert known.of(PROMPTS[0]) < 0.25
    assert known.updated(PROMPTS[2:3], [(0.4, math.nan)], (1.0,)) == known


def drawn_groups(stds, seed, size=16):
    rng = np.random.default_rng(seed)
    return [tuple(rng.normal(0.5, std, size)) for std in stds]


def test_variances_of_equal_prompts_stay_close_and_of_different_ones_do_not():
    names = tuple(PromptId(str(number)) for number in range(40))
    equal, different = Variances(), Variances()
    for seed in range(6):
        equal = equal.updated(names, drawn_groups([0.1] * 40, seed), (1.0,) * 40)
        different = different.updated(names, drawn_groups([0.02] * 20 + [0.1] * 20, seed), (1.0,) * 40)
    believed = [equal.of(name) for name in names]
    assert max(believed) < 1.5 * min(believed)
    assert max(different.of(name) for name in names[:20]) < 0.2 * min(different.of(name) for name in names[20:])


def test_variance_from_selection_by_previews_does_not_count_as_the_prompts_own():
    names = PROMPTS[:2]
    plain, chosen = drawn_groups([0.1, 0.1 * math.sqrt(2.2)], 0, size=400)
    known = Variances().updated(names, [plain, chosen], (1.0, 2.2))
    assert known.of(names[1]) == pytest.approx(known.of(names[0]), rel=0.2)


def many_previews_of(candidates, count=96):
    return Previewed(
        iteration=1,
        steps=8,
        version=Version(0),
        groups=tuple(number for number in candidates for _ in range(count)),
        seeds=tuple(range(count)) * len(candidates),
        rewards=(0.5,) * (len(candidates) * count),
    )


def test_planner_gives_no_more_previews_for_the_contrast_that_previews_made():
    selected, fresh = (0.0, 0.1, 0.9, 1.0) * 4, (0.2, 0.4, 0.6, 0.8) * 4
    events = [trained(20.0), *compared(1, (selected, selected, fresh, fresh))]
    informed = Planner.replay(BANDIT, [many_previews_of((0, 1)), *events]).plan(given()).seeds
    uninformed = Planner.replay(BANDIT, events).plan(given()).seeds
    assert sum(informed[:2]) < sum(uninformed[:2])


def test_planner_counts_previews_of_the_candidates_that_became_groups():
    """Candidates 2 and 3 were previewed and are groups 0 and 1: what these show is what previews had made."""
    selected = (0.0, 0.1, 0.9, 1.0) * 4
    events = [trained(20.0), *compared(1, (selected,) * 4)]
    chosen = Selected(iteration=1, seeds=((),) * 4, fresh=(0,) * 4, prompts=(2, 3, 4, 5))
    seeds = Planner.replay(BANDIT, [many_previews_of((2, 3)), chosen, *events]).plan(given()).seeds
    assert sum(seeds[:2]) < sum(seeds[2:])


def a_run():
    """Events of a few iterations, decided by the planner itself in a world slower than it predicts."""
    planner = Planner(BANDIT)
    events = []
    for iteration in range(4):
        new = [*compared(iteration, ((0.1, 0.9), (0.4, 0.5), (0.5, 0.5), (0.0, 1.0)))]
        plan = planner.plan(given(iteration + 1))
        finished = sum(plan.seeds) // 2
        new += [plan, trained(10.0 + iteration, iteration)]
        new += [ExplorationClosed(iteration=iteration + 1, finished=finished, discarded=3, seconds=12.0)]
        new += [audit(plan.steps, 0.7, iteration + 1)]
        for event in new:
            planner.apply(event)
        events += new
    return planner, events


def test_planner_replayed_from_events_decides_the_same():
    planner, events = a_run()
    again = Planner.replay(BANDIT, events)
    assert again.state == planner.state
    assert again.plan(given(5)) == planner.plan(given(5))
    assert planner.relative_error == again.relative_error is not None


def test_planner_state_survives_a_snapshot():
    planner, _ = a_run()
    stored = msgspec.msgpack.encode(planner.state)
    restored = Planner(BANDIT, msgspec.msgpack.decode(stored, type=PlannerState))
    assert restored.plan(given(5)) == planner.plan(given(5))


def test_planner_learns_that_previews_cost_more_than_predicted():
    before = Planner.replay(BANDIT, [trained(20.0)])
    plan = before.plan(given())
    slow = ExplorationClosed(iteration=1, finished=sum(plan.seeds) // 3, discarded=9, seconds=plan.predicted_s)
    after = Planner.replay(BANDIT, [trained(20.0), plan, slow])
    assert sum(after.plan(given()).seeds) < sum(plan.seeds)
    assert after.relative_error == pytest.approx(1 / 3 - 1, abs=0.01)


def test_planner_does_not_charge_previews_for_the_held_out_samples_before_them():
    plan = Planner.replay(BANDIT, [trained(20.0)]).plan(given())
    per_preview = plan.predicted_s * 200.0 / sum(plan.seeds)
    pictures = round(sum(plan.seeds) / 2 * per_preview / SAMPLING.steps)
    evaluation = Issued(
        requests=tuple(
            Request(
                work=Work.EVALUATION,
                iteration=0,
                group=number,
                sample=Sample(prompt=PROMPTS[0], seed=number, sampling=SAMPLING, version=Version(0)),
            )
            for number in range(pictures)
        )
    )
    half = ExplorationClosed(iteration=1, finished=sum(plan.seeds) // 2, discarded=9, seconds=plan.predicted_s)
    blamed = Planner.replay(BANDIT, [trained(20.0), plan, half])
    explained = Planner.replay(BANDIT, [trained(20.0), evaluation, plan, half])
    assert explained.relative_error == pytest.approx(0.0, abs=0.02)
    assert sum(explained.plan(given()).seeds) > 1.2 * sum(blamed.plan(given()).seeds)


@pytest.mark.parametrize(
    "change",
    [
        WorkerLost(worker=WorkerId("spot-1/0"), cause="killed"),
        WorkerJoined(worker=WorkerId("spot-1/0"), node=NodeId("spot-1"), slot_class=SlotClass.SPOT, rows=4),
    ],
    ids=["lost", "joined"],
)
def test_planner_learns_no_cost_from_an_exploration_during_which_slots_came_or_went(change):
    plan = Planner.replay(BANDIT, [trained(20.0)]).plan(given())
    slow = ExplorationClosed(iteration=1, finished=sum(plan.seeds) // 3, discarded=9, seconds=plan.predicted_s)
    assert Planner.replay(BANDIT, [trained(20.0), plan, change, slow]).plan(given()) == plan
    assert Planner.replay(BANDIT, [trained(20.0), change, plan, slow]).plan(given()) != plan


def test_planner_learns_nothing_from_an_exploration_that_never_started():
    plan = Planner.replay(BANDIT, [trained(20.0)]).plan(given())
    idle = ExplorationClosed(iteration=1, finished=0, discarded=0, seconds=20.0)
    assert Planner.replay(BANDIT, [trained(20.0), plan, idle]).plan(given()) == plan
