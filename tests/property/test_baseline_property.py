"""The estimated mean of a prompt: unbiased over the audit's draw for any selection, exact for equal rewards."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.control.explore.seeds import Preview, audit_seeds, choose, prompt_mean, unselected
from spotlight.core.rng import Purpose, derive_key, generator

GROUP, SHARE = 16, 0.1
PROMPTS = 3000

rewards = st.floats(-100, 100, allow_subnormal=False)
groups = st.lists(rewards, min_size=1, max_size=12).map(np.array)
audits = st.lists(rewards, min_size=1, max_size=12).map(np.array)


def drawn(number: int, previewed: int, skew: float) -> tuple[float, float, float]:
    """Estimated mean of one prompt, mean of its group, and mean of all of its previewed and fresh seeds.

    Most seeds of a prompt pass and a few fail badly, or the reverse; previews correlate with that at 0.8.
    """
    rng = generator(derive_key(Purpose.DATA, number, "baseline", previewed, f"{skew}"))
    exact = skew * (1 - rng.exponential(size=previewed + GROUP))
    proxy = 0.8 * exact[:previewed] + 0.6 * rng.standard_normal(previewed)
    seen = [Preview(seed, float(reward)) for seed, reward in enumerate(proxy)]
    chosen = choose(seen, GROUP, range(previewed, previewed + GROUP))
    left = unselected(seen, chosen)
    audited = audit_seeds(left, SHARE, derive_key(Purpose.ORDER, number, "audit"))
    kept = exact[list(chosen.seeds)]
    estimate = prompt_mean(kept, exact[list(audited)], len(left))
    group = float(kept.mean())
    all_seeds = [*chosen.seeds, *left]
    return group if estimate is None else estimate, group, float(exact[all_seeds].mean())


@pytest.mark.parametrize("skew", [1.0, -1.0])
@pytest.mark.parametrize("previewed", [128, 64])
def test_estimate_is_unbiased_where_the_mean_of_selected_seeds_is_not(previewed, skew):
    made = np.array([drawn(number, previewed, skew) for number in range(PROMPTS)])
    errors = made[:, 0] - made[:, 2]
    # In units of a seed's std, which is 1: four standard errors of the simulation.
    assert abs(errors.mean()) < 4 * errors.std() / math.sqrt(PROMPTS)
    assert errors.std() < 0.5
    selected = made[:, 1] - made[:, 2]
    assert abs(selected.mean()) > 0.1


@pytest.mark.parametrize("previewed", [0, 7, GROUP])
def test_prompt_without_selection_has_its_plain_mean(previewed):
    """With at most as many previews as the group has seeds, all are rolled out; fresh seeds fill the group."""
    estimate, group, all_seeds = drawn(1, previewed, 1.0)
    assert estimate == pytest.approx(group) == pytest.approx(all_seeds)


def test_group_and_audited_seeds_are_weighted_by_their_numbers():
    """4 fresh seeds and 12 unselected ones: the mean of the audited ones counts 12 times."""
    assert prompt_mean(np.array([1.0, 1.0, 0.0, 0.0]), np.array([0.25, 0.75]), 12) == pytest.approx(0.5)
    assert prompt_mean(np.ones(4), np.array([0.0]), 12) == pytest.approx(0.25)


@given(groups, audits, st.integers(0, 200), st.randoms(use_true_random=False))
def test_order_changes_no_bit(group, audited, left, random):
    shuffled = [np.array(random.sample(known.tolist(), known.size)) for known in (group, audited)]
    assert prompt_mean(*shuffled, left) == prompt_mean(group, audited, left)


@given(groups, audits, st.integers(0, 200), st.floats(-1000, 1000))
def test_a_constant_added_to_all_rewards_is_added_to_the_mean(group, audited, left, offset):
    moved = prompt_mean(group + offset, audited + offset, left)
    assert moved == pytest.approx(prompt_mean(group, audited, left) + offset, abs=1e-9)


@given(rewards, st.integers(1, 12), st.integers(1, 12), st.integers(0, 200))
def test_equal_rewards_have_exactly_their_value_as_mean(reward, group, audited, left):
    assert prompt_mean(np.full(group, reward), np.full(audited, reward), left) == reward


@given(groups, audits, st.integers(1, 200))
def test_samples_without_a_reward_take_the_mean_of_the_others_of_their_kind(group, audited, left):
    """A dropped or unscored audit changes nothing; a dropped sample counts as the mean of the rest."""
    assert prompt_mean(group, np.append(audited, [math.nan, math.inf]), left) == prompt_mean(group, audited, left)
    lowest, highest = min(group.min(), audited.min()), max(group.max(), audited.max())
    assert lowest - 1e-9 <= prompt_mean(np.append(group, math.nan), audited, left) <= highest + 1e-9
    assert prompt_mean(group, np.array([math.nan]), left) is None
    assert prompt_mean(np.array([math.nan]), audited, left) is None
