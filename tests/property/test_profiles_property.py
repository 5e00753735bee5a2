"""Seconds by batch: never negative, never falling, and faithful to the points."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from spotlight.control.profiles.timings import BatchCurve

points = st.dictionaries(st.integers(1, 512), st.floats(0, 1e6), min_size=1, max_size=8)


@given(points, st.lists(st.integers(1, 2000), min_size=2, max_size=20))
def test_seconds_never_fall_as_the_batch_grows(timed, batches):
    curve = BatchCurve(timed.items())
    seconds = [curve.seconds(batch) for batch in sorted(batches)]
    assert all(value >= 0 for value in seconds)
    assert all(later >= earlier * (1 - 1e-12) for earlier, later in pairwise(seconds))


@given(points)
def test_curve_at_a_point_has_its_seconds_or_those_of_a_faster_larger_batch(timed):
    curve = BatchCurve(timed.items())
    for batch in timed:
        assert curve.seconds(batch) == min(seconds for other, seconds in timed.items() if other >= batch)


@given(points, st.integers(1, 2000))
def test_batch_costs_no_more_than_a_larger_timed_batch(timed, batch):
    larger = [seconds for other, seconds in timed.items() if other >= batch]
    if larger:
        assert BatchCurve(timed.items()).seconds(batch) <= min(larger)
    else:
        last = max(timed)
        assert BatchCurve(timed.items()).seconds(batch) == timed[last] * batch / last
