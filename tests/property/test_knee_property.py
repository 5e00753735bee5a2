"""Seconds of the training window spent on previews where rollouts may use the rest."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.control.explore.gain import PARTS, excess, knee, seconds_per_gain, spread_excess

SECONDS = st.floats(0.1, 1e4)
SHARES = st.floats(0.0, 1.0)
RATES = st.floats(0.0, 10.0)


def concave(rate: float, scale: float):
    """A concave gain, like that of previews."""
    return lambda seconds: 1 + rate * math.log1p(seconds / scale)


@given(window=SECONDS, rollout=SECONDS, share=SHARES, rate=RATES, scale=SECONDS)
def test_previews_stay_within_the_window_and_take_at_least_what_rollouts_cannot_use(
    window, rollout, share, rate, scale
):
    found = knee(window, rollout, share, concave(rate, scale))
    free = max(0.0, window - share * rollout)
    assert free * (1 - 1e-9) <= found <= window * (1 + 1e-9)


@given(window=SECONDS, rollout=SECONDS, share=SHARES, rate=RATES, scale=SECONDS)
def test_no_other_part_of_the_window_is_better(window, rollout, share, rate, scale):
    gain = concave(rate, scale)
    best = seconds_per_gain(knee(window, rollout, share, gain), window, rollout, share, gain)
    free = max(0.0, window - share * rollout)
    for part in range(PARTS + 1):
        other = free + (window - free) * part / PARTS
        assert best <= seconds_per_gain(other, window, rollout, share, gain) * (1 + 1e-9)


@given(window=SECONDS, rollout=SECONDS, rate=RATES, scale=SECONDS)
def test_whole_window_is_previewed_where_no_group_may_be_stale(window, rollout, rate, scale):
    assert knee(window, rollout, 0.0, concave(rate, scale)) == pytest.approx(window)


@given(window=SECONDS, rollout=SECONDS, share=st.floats(0.01, 1.0))
def test_previews_without_gain_take_only_what_rollouts_cannot_use(window, rollout, share):
    assert knee(window, rollout, share, lambda seconds: 1.0) == pytest.approx(max(0.0, window - share * rollout))


def test_knee_lies_where_a_second_of_previews_gains_as_much_as_it_costs():
    """A window of 50 s, rollouts of 100 s that may all be stale: (100 + x) / gain(x) is least for x well inside it."""
    found = knee(50.0, 100.0, 1.0, lambda seconds: 1 + math.sqrt(seconds / 250))
    values = {x: (100 + x) / (1 + math.sqrt(x / 250)) for x in range(51)}
    assert found == pytest.approx(min(values, key=values.__getitem__), abs=50 / PARTS)
    assert 5 < found < 20


@given(previews=st.integers(0, 2000), prompts=st.integers(1, 40), size=st.integers(1, 16))
def test_excess_of_prompts_that_vary_alike_is_at_least_that_of_an_even_split_and_never_falls(previews, prompts, size):
    most = 256
    found = spread_excess(previews, prompts, size, most)
    assert found >= excess(min(most, previews // prompts), size)
    assert found <= spread_excess(previews + prompts, prompts, size, most) + 1e-12
