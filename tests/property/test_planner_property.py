"""Planning for any capacity: the split over prompts is optimal and no plan exceeds its budget."""

from itertools import pairwise, product

from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.control.explore.bandit import Bandit
from spotlight.control.explore.config import ExploreConfig
from spotlight.control.explore.gain import allocate, excess, with_reserve
from spotlight.control.explore.planner import PlanInput, Planner
from spotlight.core.events import IterationDone
from spotlight.core.types import PromptId

variances = st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.5, 1.0, 3.0]), min_size=1, max_size=3)


@settings(max_examples=150)
@given(variances, st.integers(1, 4), st.integers(0, 24), st.integers(1, 12))
def test_no_split_is_worth_more_than_the_allocation(weights, group_size, previews, most):
    split = allocate(weights, group_size, previews, most)
    assert sum(split.seeds) <= previews
    assert all(0 <= seeds <= most for seeds in split.seeds)

    def worth(seeds):
        return sum(w * excess(n, group_size) for w, n in zip(weights, seeds, strict=True))

    options = product(range(most + 1), repeat=len(weights))
    best = max(worth(seeds) for seeds in options if sum(seeds) <= previews)
    assert abs(worth(split.seeds) - best) <= 1e-9 * (1 + best)
    assert abs(split.excess * max(sum(weights), 1e-300) - best) <= 1e-9 * (1 + best)


@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=20), st.integers(2, 16), st.integers(0, 2000))
def test_a_prompt_that_varies_more_never_gets_fewer_and_flat_ones_get_none(weights, group_size, previews):
    split = allocate([*weights, 0.0], group_size, previews, 128)
    by_variance = [seeds for _, seeds in sorted(zip(weights, split.seeds, strict=False))]
    assert by_variance == sorted(by_variance)
    assert split.seeds[-1] == 0
    assert all(seeds == 0 or seeds > group_size for seeds in split.seeds)


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0.0, 0.5, 2.0])), max_size=12))
def test_reserve_comes_after_the_allocation_and_does_not_change_it(prompts):
    seeds, weights = tuple(count for count, _ in prompts), [weight for _, weight in prompts]
    reserved = with_reserve(seeds, weights)
    last = max((number for number, count in enumerate(seeds) if count), default=len(seeds))
    assert reserved[: last + 1] == seeds[: last + 1]
    assert all(
        count == (seeds[last] if weight else 0)
        for count, weight in zip(reserved[last + 1 :], weights[last + 1 :], strict=True)
    )


@given(st.integers(2, 64))
def test_gain_beyond_the_group_is_rising_and_concave(group_size):
    values = [excess(seeds, group_size) for seeds in range(group_size, 12 * group_size)]
    steps = [after - before for before, after in pairwise(values)]
    assert all(step > 0 for step in steps)
    assert all(later < earlier + 1e-12 for earlier, later in pairwise(steps))


@settings(max_examples=60)
@given(
    st.floats(0.01, 500),
    st.lists(st.one_of(st.none(), st.floats(0.5, 5000)), min_size=1, max_size=12),
    st.integers(1, 40),
    st.integers(2, 24),
)
def test_no_learned_plan_exceeds_its_budget_or_its_limits(train_s, speeds, prompts, group_size):
    settings = ExploreConfig(plan="bandit", seeds=100)
    planner = Planner.replay(settings, [IterationDone(iteration=0, rollout_s=1.0, train_s=train_s, reward=0.0)])
    names = tuple(PromptId(str(number)) for number in range(prompts))
    plan = planner.plan(
        PlanInput(iteration=1, group_size=group_size, full_steps=10, prompts=names, speeds=tuple(speeds))
    )
    assert len(plan.seeds) == prompts
    assert all(seeds == 0 or group_size < seeds <= settings.most_seeds for seeds in plan.seeds)
    if any(speed is not None for speed in speeds) and any(plan.seeds):
        # Everything but a reserve of equal groups at the end fits.
        reserve = max(0, sum(count == plan.seeds[-1] for count in plan.seeds) - 1)
        share = sum(plan.seeds[: len(plan.seeds) - reserve]) / sum(plan.seeds)
        assert plan.predicted_s * share <= plan.budget_s * (1 + 1e-9)


audits = st.lists(st.tuples(st.integers(1, 12), st.floats(-1, 1), st.floats(0, 400)), max_size=12)
ARMS = range(1, 13)


@settings(max_examples=100)
@given(audits, st.floats(0, 3), st.tuples(st.integers(1, 12), st.floats(-1, 1), st.floats(0, 400)))
def test_curve_of_any_audits_rises_and_another_audit_raises_no_doubt(seen, alpha, another):
    bandit = Bandit()
    for steps, rho, audited in seen:
        bandit = bandit.learned(steps, rho, audited, discount=1.0)
    curve = bandit.curve(ARMS, 10, alpha)
    assert list(curve) == list(ARMS)
    assert list(curve.values()) == sorted(curve.values())
    assert all(0 <= rho <= 1 for rho in curve.values())
    before, after = bandit.doubt(ARMS, 10), bandit.learned(*another, discount=1.0).doubt(ARMS, 10)
    assert all(after[steps] <= before[steps] + 1e-9 for steps in ARMS)
