"""Group advantages: the three scales, zero variance, rewards that are not finite, the running std."""

import math

import msgspec
import numpy as np
import pytest

from spotlight.control.advantage import (
    GroupOutcome,
    LaggedStd,
    StdMode,
    comparable_groups,
    group_advantages,
    pooled_within_group_std,
)
from spotlight.core.errors import ConfigError

EPS = 1e-4
FIRST, SECOND = np.array([0.0, 1.0, 2.0, 5.0]), np.array([10.0, 10.5, 9.5, 10.0])


def test_group_std_has_no_degrees_of_freedom_correction():
    first, second = group_advantages([FIRST, SECOND], std_mode=StdMode.GROUP, eps=EPS)
    # Mean 2; squared deviations 4 + 1 + 0 + 9 = 14 over 4, not over 3.
    np.testing.assert_allclose(first.advantages, np.array([-2, -1, 0, 3]) / (math.sqrt(3.5) + EPS), rtol=1e-14)
    assert first.std == pytest.approx(math.sqrt(3.5))
    assert second.std == pytest.approx(math.sqrt(0.5 / 4))
    assert first.mean == 2.0
    assert first.outcome is GroupOutcome.USABLE
    assert first.kept.all()


def test_iteration_std_is_over_all_rewards_about_their_common_mean():
    made = group_advantages([FIRST, SECOND], std_mode=StdMode.ITERATION, eps=EPS)
    std = np.std(np.concatenate([FIRST, SECOND]))
    for group, rewards in zip(made, (FIRST, SECOND), strict=True):
        assert group.std == pytest.approx(std, rel=1e-14)
        np.testing.assert_allclose(group.advantages, (rewards - rewards.mean()) / (std + EPS), rtol=1e-12)


@pytest.mark.parametrize(("mode", "std"), [(StdMode.GROUP, 3.0), (StdMode.LAGGED, 2.5), (StdMode.ITERATION, None)])
def test_baseline_moves_the_centre_and_only_the_scale_of_the_group(mode: StdMode, std: float | None):
    """About 2 - sqrt(5.5) the root mean square of the first group is 3, with a variance of 3.5 about its mean of 2."""
    centre = 2 - math.sqrt(5.5)
    lagged = 2.5 if mode is StdMode.LAGGED else None
    moved, plain = group_advantages(
        [FIRST, SECOND], std_mode=mode, eps=EPS, lagged_std=lagged, baselines=[centre, None]
    )
    own = group_advantages([FIRST, SECOND], std_mode=mode, eps=EPS, lagged_std=lagged)
    assert moved.mean == centre
    assert moved.std == pytest.approx(own[0].std if std is None else std)
    np.testing.assert_allclose(moved.advantages, (FIRST - centre) / (moved.std + EPS), rtol=1e-14)
    assert plain.advantages.tolist() == own[1].advantages.tolist()


def test_baseline_far_from_a_group_that_hardly_varies_gives_advantages_near_one_not_thousands():
    (made,) = group_advantages([np.array([0.9, 0.9, 0.9, 0.901])], std_mode=StdMode.GROUP, eps=EPS, baselines=[0.5])
    np.testing.assert_allclose(made.advantages, np.ones(4), atol=2e-3)


def test_group_of_equal_rewards_trains_only_if_its_baseline_differs():
    ahead, level = group_advantages(
        [np.full(3, 0.1), np.full(3, 0.1)], std_mode=StdMode.LAGGED, eps=EPS, lagged_std=0.5, baselines=[0.05, 0.1]
    )
    np.testing.assert_allclose(ahead.advantages, np.full(3, 0.05 / (0.5 + EPS)))
    assert level.advantages.tolist() == [0.0] * 3
    assert (ahead.outcome, level.outcome) == (GroupOutcome.USABLE, GroupOutcome.ZERO_VARIANCE)


def test_lagged_std_is_used_as_given():
    (made,) = group_advantages([FIRST], std_mode=StdMode.LAGGED, eps=EPS, lagged_std=0.25)
    np.testing.assert_allclose(made.advantages, np.array([-2, -1, 0, 3]) / (0.25 + EPS), rtol=1e-14)


def test_first_lagged_iteration_uses_its_own_pooled_std():
    made = group_advantages([FIRST, SECOND], std_mode=StdMode.LAGGED, eps=EPS, lagged_std=LaggedStd().std)
    assert [group.std for group in made] == [pytest.approx(math.sqrt(14.5 / 8), rel=1e-14)] * 2


@pytest.mark.parametrize("mode", list(StdMode))
@pytest.mark.parametrize("value", [0.1, 0.7])
def test_equal_rewards_give_exactly_zero_and_are_named(mode: StdMode, value: float):
    # The mean of three 0.1 rounds to another number than 0.1.
    made = group_advantages([np.full(3, value), FIRST], std_mode=mode, eps=EPS)
    assert made[0].advantages.tolist() == [0.0, 0.0, 0.0]
    assert made[0].outcome is GroupOutcome.ZERO_VARIANCE
    assert made[0].kept.all()
    assert np.abs(made[1].advantages).max() > 0.1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200])
@pytest.mark.parametrize("mode", list(StdMode))
def test_a_reward_that_is_not_finite_costs_only_its_own_sample(mode: StdMode, bad: float):
    spoilt = group_advantages([np.array([0.0, bad, 1.0, 2.0, 5.0]), SECOND], std_mode=mode, eps=EPS)
    clean = group_advantages([FIRST, SECOND], std_mode=mode, eps=EPS)
    assert spoilt[0].kept.tolist() == [True, False, True, True, True]
    assert spoilt[0].advantages[1] == 0.0
    assert spoilt[0].advantages[spoilt[0].kept].tolist() == clean[0].advantages.tolist()
    assert spoilt[1].advantages.tolist() == clean[1].advantages.tolist()
    assert [len(group.problems) for group in (*spoilt, *clean)] == [1, 0, 0, 0]
    assert f"sample 1: {bad}" in spoilt[0].problems[0]
    assert "Group 0" in spoilt[0].problems[0]


@pytest.mark.parametrize("rewards", [[math.nan, math.nan], [math.nan, 0.3, math.inf]])
def test_fewer_than_two_finite_rewards_train_nothing(rewards: list[float]):
    made = group_advantages([np.array(rewards), FIRST], std_mode=StdMode.GROUP, eps=EPS)
    assert made[0].outcome is GroupOutcome.TOO_FEW_FINITE
    assert not made[0].advantages.any()
    assert not made[0].kept.any()
    assert "others are dropped" in made[0].problems[0]
    assert made[1].outcome is GroupOutcome.USABLE


def test_wrong_input_is_refused_in_one_sentence():
    with pytest.raises(ConfigError, match="group size to 2 or more"):
        group_advantages([FIRST, np.array([1.0])], std_mode=StdMode.GROUP, eps=EPS)
    with pytest.raises(ConfigError, match="eps is 0"):
        group_advantages([FIRST], std_mode=StdMode.GROUP, eps=0.0)
    with pytest.raises(ConfigError, match=r"lagged std is 0\.0"):
        group_advantages([FIRST], std_mode=StdMode.LAGGED, eps=EPS, lagged_std=0.0)


def test_running_std_starts_at_the_first_iteration_and_decays_slowly():
    wide, narrow = [np.array([-2.0, 2.0])], [np.array([-1.0, 1.0])]
    start = LaggedStd(decay=0.5)
    first = start.updated(wide)
    second = first.updated(narrow)
    assert (start.std, first.std) == (None, 2.0)
    # Weights 1/4 and 1/2, normalised: (4/3 + 2/3 * 1) of variances 4 and 1.
    assert second.std == pytest.approx(math.sqrt((0.25 * 4 + 0.5 * 1) / 0.75), rel=1e-14)
    assert first.std == 2.0
    for _ in range(60):
        second = second.updated(narrow)
    assert second.std == pytest.approx(1.0, rel=1e-9)


def test_running_std_ignores_iterations_without_contrast():
    seen = LaggedStd().updated([FIRST])
    assert seen.updated([np.array([1.0, 1.0]), np.array([math.nan, 3.0])]) == seen
    assert LaggedStd().updated([np.zeros(4)]).std is None


def test_running_std_survives_serialisation():
    seen = LaggedStd(decay=0.8).updated([FIRST]).updated([SECOND])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(seen), type=LaggedStd) == seen
    assert msgspec.json.decode(msgspec.json.encode(seen), type=LaggedStd) == seen


def test_pooled_std_weighs_samples_and_skips_groups_without_baseline():
    groups = [np.array([0.0, 2.0]), np.array([5.0, 5.0, 5.0, 5.0]), np.array([math.nan, 100.0])]
    assert pooled_within_group_std(groups) == pytest.approx(math.sqrt(2 / 6), rel=1e-14)


def test_groups_that_can_be_compared_have_two_finite_rewards():
    nan = float("nan")
    groups = [np.array([0.1, nan, 0.2]), np.array([0.1, nan]), np.array([nan, nan]), np.array([0.3, 0.3])]
    assert comparable_groups(groups) == 2
    assert comparable_groups([]) == 0
