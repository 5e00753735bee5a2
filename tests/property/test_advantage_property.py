"""Advantages for any rewards: order, offset and neighbours that have no reward do not matter."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spotlight.control.advantage import StdMode, decoupled_advantages, group_advantages

EPS = 1e-4
rewards = st.floats(-100, 100, allow_subnormal=False)
groups = st.lists(rewards, min_size=2, max_size=12).map(np.array)
iterations = st.lists(groups, min_size=1, max_size=5)
modes = st.sampled_from(list(StdMode))
lagged = st.one_of(st.none(), st.floats(0.01, 10))


@given(iterations, modes, lagged, st.randoms(use_true_random=False))
def test_order_of_samples_and_groups_changes_no_bit(iteration, mode, std, random):
    made = group_advantages(iteration, std_mode=mode, eps=EPS, lagged_std=std)
    orders = [random.sample(range(group.size), group.size) for group in iteration]
    places = random.sample(range(len(iteration)), len(iteration))
    shuffled = [iteration[place][orders[place]] for place in places]
    again = group_advantages(shuffled, std_mode=mode, eps=EPS, lagged_std=std)
    for place, group in zip(places, again, strict=True):
        assert group.advantages.tolist() == made[place].advantages[orders[place]].tolist()


@given(iterations, modes, lagged, st.floats(-1000, 1000))
def test_a_common_offset_does_not_matter(iteration, mode, std, offset):
    made = group_advantages(iteration, std_mode=mode, eps=EPS, lagged_std=std)
    moved = group_advantages([group + offset for group in iteration], std_mode=mode, eps=EPS, lagged_std=std)
    for one, other in zip(made, moved, strict=True):
        # Adding up to 1000 rounds a reward by 1e-13; the smallest divisor is eps.
        np.testing.assert_allclose(one.advantages, other.advantages, rtol=1e-6, atol=1e-6)


@given(iterations, lagged)
def test_an_offset_of_one_group_does_not_matter_unless_the_scale_is_shared_across_groups(iteration, std):
    for mode in (StdMode.GROUP, StdMode.LAGGED):
        moved = [iteration[0] + 50.0, *iteration[1:]]
        made = group_advantages(iteration, std_mode=mode, eps=EPS, lagged_std=std)
        again = group_advantages(moved, std_mode=mode, eps=EPS, lagged_std=std)
        for one, other in zip(made, again, strict=True):
            np.testing.assert_allclose(one.advantages, other.advantages, rtol=1e-6, atol=1e-6)


@given(iterations, modes, lagged)
def test_kept_advantages_sum_to_zero_and_follow_the_rewards(iteration, mode, std):
    for group, scored in zip(
        group_advantages(iteration, std_mode=mode, eps=EPS, lagged_std=std), iteration, strict=True
    ):
        scale = np.abs(scored).max() / (group.std + EPS) + 1e-12
        assert abs(math.fsum(group.advantages[group.kept])) <= 1e-12 * scale * scored.size
        order = np.argsort(scored, kind="stable")
        assert (np.diff(group.advantages[order]) >= 0).all()
        assert np.isfinite(group.advantages).all()


@given(iterations, modes, lagged, st.sampled_from([math.nan, math.inf, -math.inf]), st.data())
def test_a_sample_without_reward_is_as_if_absent(iteration, mode, std, bad, data):
    where = data.draw(st.integers(0, len(iteration) - 1))
    position = data.draw(st.integers(0, iteration[where].size))
    spoilt = [*iteration]
    spoilt[where] = np.insert(iteration[where], position, bad)
    made = group_advantages(iteration, std_mode=mode, eps=EPS, lagged_std=std)
    again = group_advantages(spoilt, std_mode=mode, eps=EPS, lagged_std=std)
    for one, other in zip(made, again, strict=True):
        assert other.advantages[other.kept].tolist() == one.advantages.tolist()
        assert other.outcome is one.outcome
    assert not again[where].kept[position]
    assert again[where].advantages[position] == 0.0
    assert sum(int((~group.kept).sum()) for group in again) == 1


@st.composite
def several_rewards(draw):
    """Two or three rewards of one iteration, some scores missing, with their weights and lagged stds."""
    sizes = draw(st.lists(st.integers(2, 6), min_size=1, max_size=4))
    names = draw(st.sampled_from(["ab", "abc"]))
    scores = st.one_of(rewards, st.just(math.nan))
    columns = {
        name: [np.array(draw(st.lists(scores, min_size=size, max_size=size))) for size in sizes] for name in names
    }
    weights = {name: draw(st.floats(0.1, 10) | st.floats(-10, -0.1)) for name in names}
    return columns, weights, {name: draw(lagged) for name in names}


def decoupled(columns, weights, mode, stds):
    return decoupled_advantages(columns, weights, std_mode=mode, eps=EPS, lagged_stds=stds, baselines={})


@given(several_rewards(), modes, st.randoms(use_true_random=False))
def test_order_of_rewards_samples_and_groups_changes_no_bit_of_decoupled_advantages(drawn, mode, random):
    columns, weights, stds = drawn
    made = decoupled(columns, weights, mode, stds)
    names = random.sample(sorted(columns), len(columns))
    orders = [random.sample(range(group.size), group.size) for group in columns["a"]]
    places = random.sample(range(len(orders)), len(orders))
    shuffled = {name: [columns[name][place][orders[place]] for place in places] for name in names}
    again = decoupled(shuffled, weights, mode, stds)
    for place, group in zip(places, again, strict=True):
        assert group.advantages.tolist() == made[place].advantages[orders[place]].tolist()
        assert group.kept.tolist() == made[place].kept[orders[place]].tolist()


@given(several_rewards(), modes)
def test_sample_without_a_score_of_one_reward_changes_nothing_for_its_siblings(drawn, mode):
    columns, weights, stds = drawn
    scored = [np.isfinite(sum(parts)) for parts in zip(*columns.values(), strict=True)]
    if not all(each.sum() >= 2 for each in scored):
        return
    made = decoupled(columns, weights, mode, stds)
    without = {
        name: [group[each] for group, each in zip(groups, scored, strict=True)] for name, groups in columns.items()
    }
    for group, alone, each in zip(made, decoupled(without, weights, mode, stds), scored, strict=True):
        assert group.kept.tolist() == each.tolist()
        assert group.advantages[each].tolist() == alone.advantages.tolist()
        assert not group.advantages[~each].any()
