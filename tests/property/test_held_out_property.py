"""Intervals of held-out scores have their nominal coverage at any correlation of the pictures of a prompt."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from spotlight.compute.scores import Estimate, estimate
from spotlight.core.rng import Purpose, derive_key, generator

PROMPTS, PICTURES = 20, 5
RUNS = 400
SCENES = [1] * 64 + [12, 13, 13, 13, 13] + [21, 21, 22] + [8] * 8 + [64] + [16] * 4
"""Pictures of each prompt in 384 held-out pictures of `scenes`."""

grades = st.floats(0.0, 1.0, allow_subnormal=False)
verdicts = st.sampled_from([0.0, 1.0])
clusters = st.integers(0, 4)


def scored_pictures(values: st.SearchStrategy[float]) -> st.SearchStrategy[tuple[np.ndarray, list[int]]]:
    """Scores of pictures, and the prompt of each picture."""
    pairs = st.lists(st.tuples(values, clusters), min_size=1, max_size=30)
    return pairs.map(lambda made: (np.array([value for value, _ in made]), [prompt for _, prompt in made]))


any_scores = st.one_of(scored_pictures(grades), scored_pictures(verdicts))


def independent(values: np.ndarray) -> Estimate:
    """The formula for one picture per prompt: a normal interval, or Wilson's."""
    count, mean = len(values), float(values.mean())
    if set(values.tolist()) <= {0.0, 1.0}:
        shrunk = 1 + 1.96**2 / count
        centre = (mean + 1.96**2 / (2 * count)) / shrunk
        half = 1.96 * np.sqrt(mean * (1 - mean) / count + (1.96 / (2 * count)) ** 2) / shrunk
        return Estimate(mean, min(mean, float(centre - half)), max(mean, float(centre + half)))
    half = 1.96 * float(values.std()) / math.sqrt(count - 1)
    return Estimate(mean, mean - half, mean + half)


@given(st.one_of(st.lists(grades, min_size=2), st.lists(verdicts, min_size=1)).map(np.array))
def test_one_picture_per_prompt_changes_no_bit(values):
    assert estimate(values, range(len(values))) == estimate(values) == independent(values)


@given(any_scores, st.randoms(use_true_random=False))
def test_order_of_pictures_does_not_matter(scored, random):
    values, prompts = scored
    order = random.sample(range(len(values)), len(values))
    made = estimate(values, prompts)
    again = estimate(values[order], [prompts[place] for place in order])
    np.testing.assert_allclose(list(vars(again).values()), list(vars(made).values()), rtol=0, atol=1e-7)


@given(any_scores)
def test_interval_by_prompt_is_never_narrower_than_that_of_independent_pictures(scored):
    values, prompts = scored
    assume(len(values) > 1)
    made, bound = estimate(values, prompts), independent(values)
    assert made.value == bound.value
    assert made.low <= bound.low + 1e-9
    assert made.high >= bound.high - 1e-9


@given(st.lists(verdicts, min_size=1, max_size=8), st.integers(2, 9))
def test_pass_or_fail_pictures_alike_within_prompts_have_the_interval_of_one_picture_per_prompt(passed, pictures):
    repeated = estimate(np.repeat(passed, pictures), np.repeat(np.arange(len(passed)), pictures).tolist())
    once = independent(np.array(passed))
    assert (repeated.low, repeated.high) == pytest.approx((once.low, once.high))


def correlated(run: int, sizes: list[int], correlation: float, mean: float, is_graded: bool) -> np.ndarray:
    """Scores of pictures with this correlation within a prompt."""
    rng = generator(derive_key(Purpose.DATA, run, "coverage", f"{correlation}", f"{mean}"))
    prompt = np.repeat(np.arange(len(sizes)), sizes)
    if is_graded:
        shared, own = rng.standard_normal(len(sizes))[prompt], rng.standard_normal(len(prompt))
        return mean + 0.2 * (math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own)
    strength = 1 / correlation - 1
    chance = rng.beta(mean * strength, (1 - mean) * strength, len(sizes))
    return (rng.random(len(prompt)) < chance[prompt]).astype(float)


def coverage(sizes: list[int], correlation: float, mean: float, is_graded: bool) -> tuple[float, float]:
    """Shares of runs whose interval covers the mean: clustered by prompt, and with independent pictures."""
    prompts = np.repeat(np.arange(len(sizes)), sizes).tolist()
    clustered = plain = 0
    for run in range(RUNS):
        values = correlated(run, sizes, correlation, mean, is_graded)
        by_prompt, by_picture = estimate(values, prompts), estimate(values)
        clustered += by_prompt.low <= mean <= by_prompt.high
        plain += by_picture.low <= mean <= by_picture.high
    return clustered / RUNS, plain / RUNS


@pytest.mark.parametrize("sizes", [[PICTURES] * PROMPTS, SCENES], ids=["20 prompts x 5", "scenes"])
@pytest.mark.parametrize(
    ("is_graded", "correlation", "mean"),
    [(True, 0.3, 0.5), (True, 0.7, 0.5), (False, 0.2, 0.5), (False, 0.5, 0.5), (False, 0.2, 0.9)],
)
def test_intervals_cover_the_mean_of_all_prompts_where_independent_ones_miss_it(sizes, is_graded, correlation, mean):
    clustered, plain = coverage(sizes, correlation, mean, is_graded)
    assert clustered >= 0.92
    assert plain <= 0.90
