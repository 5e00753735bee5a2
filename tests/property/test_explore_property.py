"""Selection for any previews: no subset varies more, and order, offset and unusable previews do not matter."""

import math
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.control.explore.fidelity import AuditedGroup, AuditedSeed, fidelity
from spotlight.control.explore.seeds import Preview, choose, largest_variance, most_varied, select

coarse = st.sampled_from([0.0, 0.25, 0.5, 1.0])
rewards = st.lists(st.one_of(coarse, st.floats(-10, 10, allow_subnormal=False)), min_size=1, max_size=9)
sizes = st.integers(1, 6)
bad = st.sampled_from([math.nan, math.inf, -math.inf])


def previews_of(values):
    return [Preview(3 * seed + 1, value) for seed, value in enumerate(values)]


@settings(max_examples=200)
@given(rewards, sizes)
def test_no_subset_varies_more_than_the_selected_one(values, size):
    by_seed = {preview.seed: preview.reward for preview in previews_of(values)}
    chosen = [by_seed[seed] for seed in select(previews_of(values), size)]
    size = min(size, len(values))
    assert len(chosen) == size
    # Centred, because the variance of equal rewards must be 0 in the reference too.
    centred = np.array(values) - np.median(values)
    best = max(np.var(subset) for subset in combinations(centred, size))
    scale = (max(values) - min(values)) ** 2
    assert np.var(np.array(chosen) - np.median(values)) >= best - 1e-9 * scale
    assert math.isclose(largest_variance(values, size), best, rel_tol=1e-9, abs_tol=1e-12 * scale)


@given(rewards, sizes, st.lists(bad, max_size=3), st.randoms(use_true_random=False))
def test_neither_order_nor_unusable_previews_change_the_selection(values, size, unusable, random):
    previews = previews_of(values)
    noisy = previews + [Preview(3 * number, value) for number, value in enumerate(unusable)]
    assert select(random.sample(noisy, len(noisy)), size) == select(previews, size)


@given(st.lists(st.integers(-8, 8), min_size=1, max_size=9), sizes, st.integers(-1000, 1000))
def test_an_offset_of_all_rewards_changes_nothing(values, size, offset):
    assert select(previews_of([float(v + offset) for v in values]), size) == select(
        previews_of([float(v) for v in values]), size
    )


@given(st.lists(rewards, min_size=1, max_size=6), st.integers(1, 6), sizes, st.data())
def test_candidates_chosen_by_scouts_stay_chosen_with_more_previews(scouts, count, size, data):
    scouts = [values for values in scouts if len(values) >= size]
    known = [previews_of(values) for values in scouts]
    chosen = most_varied(known, count, size)
    assert list(chosen) == sorted(set(chosen))
    assert len(chosen) == min(count, len(scouts))
    varied = [largest_variance(values, size) for values in scouts]
    given_up = [varied[number] for number in range(len(scouts)) if number not in chosen]
    assert not given_up or min(varied[number] for number in chosen) >= max(given_up)
    more = {number: data.draw(rewards) for number in chosen}
    deeper = [previews_of([*scouts[number], *more.get(number, [])]) for number in range(len(scouts))]
    assert {largest_variance([p.reward for p in deeper[n]], size) for n in most_varied(deeper, count, size)} == {
        largest_variance([p.reward for p in deeper[n]], size) for n in chosen
    }


@given(st.lists(st.one_of(coarse, bad), max_size=9), sizes, st.randoms(use_true_random=False))
def test_choose_always_gives_a_whole_group_of_different_seeds(values, size, random):
    previews = previews_of(values)
    chosen = choose(previews, size, range(10_000))
    assert len(set(chosen.seeds)) == len(chosen.seeds) == size
    finite = {preview.seed for preview in previews if math.isfinite(preview.reward)}
    assert set(chosen.previewed) <= finite
    assert choose(random.sample(previews, len(previews)), size, range(10_000)) == chosen


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=4, max_size=12), st.integers(2, 3))
def test_fidelity_of_a_full_audit_is_within_bounds(values, kept):
    pairs = tuple(AuditedSeed(round(a, 3), round(b, 3)) for a, b in values)
    chosen = select([Preview(seed, pair.proxy) for seed, pair in enumerate(pairs)], kept)
    group = AuditedGroup(
        kept=tuple(pairs[seed] for seed in chosen),
        audited=tuple(pair for seed, pair in enumerate(pairs) if seed not in chosen),
        share=1.0,
        previewed=len(pairs),
    )
    figures = fidelity([group])
    assert 0 <= figures.get("captured_variance", 0) <= 1 + 1e-9
    assert all(-1 <= figures.get(name, 0) <= 1 for name in ("pearson", "spearman"))
