"""Advantages of several rewards, each normalised by itself and then added up (GDPO)."""

import math

import numpy as np
import pytest

from spotlight.control.advantage import GroupOutcome, LaggedStd, StdMode, decoupled_advantages, group_advantages

EPS = 1e-4
FIRST = [np.array([0.0, 1.0, 2.0, 5.0]), np.array([10.0, 10.5, 9.5, 10.0])]
SECOND = [np.array([100.0, 100.0, 300.0, 300.0]), np.array([0.0, 0.0, 0.0, 0.0])]


def decoupled(rewards, weights, mode=StdMode.GROUP, lagged=None, baselines=None):
    return decoupled_advantages(
        rewards, weights, std_mode=mode, eps=EPS, lagged_stds=lagged or {}, baselines=baselines or {}
    )


def test_weighted_sum_of_advantages_is_divided_by_the_norm_of_the_weights():
    """First group: -2, -1, 0, 3 over sqrt(3.5), and -100, -100, 100, 100 over 100; weights 3 and 4, norm 5."""
    first, second = decoupled({"a": FIRST, "b": SECOND}, {"a": 3.0, "b": 4.0})
    own = np.array([-2, -1, 0, 3]) / (math.sqrt(3.5) + EPS)
    other = np.array([-100, -100, 100, 100]) / (100 + EPS)
    np.testing.assert_allclose(first.advantages, (3 * own + 4 * other) / 5, rtol=1e-14)
    np.testing.assert_allclose(
        first.advantages, [-1.441391896709, -1.120695548355, 0.799999200001, 1.762088245063], atol=1e-12, rtol=0
    )
    (alone,) = group_advantages(FIRST[1:], std_mode=StdMode.GROUP, eps=EPS)
    np.testing.assert_allclose(second.advantages, 0.6 * alone.advantages, rtol=1e-14)
    assert (first.outcome, second.outcome) == (GroupOutcome.USABLE, GroupOutcome.USABLE)
    assert (first.std, first.mean) == (5.0, 3 * 2.0 + 4 * 200.0)


def test_one_reward_has_its_own_advantages():
    for made, alone in zip(
        decoupled({"a": FIRST}, {"a": 7.0}), group_advantages(FIRST, std_mode=StdMode.GROUP, eps=EPS), strict=True
    ):
        np.testing.assert_allclose(made.advantages, alone.advantages, rtol=1e-15)


def test_scale_of_one_reward_changes_nothing_but_the_share_of_eps():
    plain = decoupled({"a": FIRST, "b": SECOND}, {"a": 1.0, "b": 1.0})
    scaled = decoupled({"a": [1e6 * group for group in FIRST], "b": SECOND}, {"a": 1.0, "b": 1.0})
    for one, other in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(one.advantages, other.advantages, rtol=1e-3)


def test_each_reward_has_its_own_lagged_std_and_baseline():
    lagged = {"a": 0.5, "b": 50.0}
    (made,) = decoupled(
        {"a": FIRST[:1], "b": SECOND[:1]}, {"a": 1.0, "b": 1.0}, StdMode.LAGGED, lagged, {"a": [1.0], "b": None}
    )
    expected = ((FIRST[0] - 1.0) / (0.5 + EPS) + (SECOND[0] - 200.0) / (50 + EPS)) / math.sqrt(2)
    np.testing.assert_allclose(made.advantages, expected, rtol=1e-14)


def test_reward_of_weight_zero_is_not_trained_on():
    flat, _ = decoupled({"a": [np.ones(4), np.ones(4)], "b": SECOND}, {"a": 1.0, "b": 0.0})
    assert flat.advantages.tolist() == [0.0] * 4
    assert flat.outcome is GroupOutcome.ZERO_VARIANCE


def test_sample_without_one_of_its_rewards_is_left_out_of_all():
    holed = [np.array([0.0, 1.0, 2.0, 5.0]), FIRST[1]]
    gap = [np.array([100.0, 100.0, 300.0, math.nan]), SECOND[1]]
    made = decoupled({"a": holed, "b": gap}, {"a": 1.0, "b": 1.0})[0]
    without = decoupled({"a": [holed[0][:3]], "b": [gap[0][:3]]}, {"a": 1.0, "b": 1.0})[0]
    assert made.kept.tolist() == [True, True, True, False]
    assert made.advantages.tolist() == [*without.advantages.tolist(), 0.0]
    assert len(made.problems) == 1


def test_group_with_fewer_than_two_complete_samples_is_not_trained_on():
    rewards = {"a": [np.array([0.0, math.nan, 1.0])], "b": [np.array([math.nan, 1.0, 2.0])]}
    (made,) = decoupled(rewards, {"a": 1.0, "b": 1.0})
    assert made.outcome is GroupOutcome.TOO_FEW_FINITE
    assert not made.kept.any()


def test_iteration_std_of_each_reward_is_over_all_groups():
    made = decoupled({"a": FIRST, "b": SECOND}, {"a": 1.0, "b": 1.0}, StdMode.ITERATION)
    stds = {name: np.std(np.concatenate(groups)) for name, groups in (("a", FIRST), ("b", SECOND))}
    for index, group in enumerate(made):
        parts = [(groups[index] - groups[index].mean()) / (stds[name] + EPS) for name, groups in
                 (("a", FIRST), ("b", SECOND))]  # fmt: skip
        np.testing.assert_allclose(group.advantages, sum(parts) / math.sqrt(2), rtol=1e-12)


@pytest.mark.parametrize("mode", list(StdMode))
def test_first_iteration_without_a_lagged_std_is_defined(mode):
    for group in decoupled({"a": FIRST, "b": SECOND}, {"a": 1.0, "b": 1.0}, mode, {"a": LaggedStd().std, "b": None}):
        assert np.isfinite(group.advantages).all()
