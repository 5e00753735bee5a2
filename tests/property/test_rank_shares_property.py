"""Shares of the ranks: every pair once, in order, and no division ends earlier."""

from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from spotlight.control.pipeline.tsp import EQUALLY_FAST, rank_shares, smoothed_speeds

speeds = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6)
counts = st.integers(0, 200)


@given(pairs=counts, speeds=speeds)
def test_shares_cover_every_pair_once_in_rank_order(pairs, speeds):
    shares = rank_shares(pairs, speeds)
    assert len(shares) == len(speeds)
    assert [pair for share in shares for pair in share] == list(range(pairs))


@given(pairs=counts, speed=st.floats(0.01, 100.0), noise=st.lists(st.floats(0, EQUALLY_FAST / 2), min_size=1))
def test_ranks_that_are_equally_fast_share_evenly_with_the_larger_shares_first(pairs, speed, noise):
    sizes = [len(share) for share in rank_shares(pairs, [speed * (1 + each) for each in noise])]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(pairs=counts, speeds=speeds)
def test_a_faster_rank_never_takes_fewer_pairs(pairs, speeds):
    taken = sorted(zip(speeds, (len(share) for share in rank_shares(pairs, speeds)), strict=True))
    if max(speeds) > min(speeds) * (1 + EQUALLY_FAST):
        assert all(slow[1] <= fast[1] for slow, fast in pairwise(taken) if slow[0] < fast[0])


@given(pairs=st.integers(1, 9), speeds=st.lists(st.floats(0.1, 10.0), min_size=2, max_size=3))
def test_no_other_division_ends_earlier(pairs, speeds):
    if max(speeds) <= min(speeds) * (1 + EQUALLY_FAST):
        return

    def end(sizes) -> float:
        return max(size / speed for size, speed in zip(sizes, speeds, strict=True))

    made = end([len(share) for share in rank_shares(pairs, speeds)])
    every = product(range(pairs + 1), repeat=len(speeds))
    assert made <= min(end(sizes) for sizes in every if sum(sizes) == pairs) * (1 + 1e-9)


def test_a_rank_of_half_the_speed_takes_half_as_many_pairs():
    assert rank_shares(90, [2.0, 1.0, 1.5]) == (range(40), range(40, 60), range(60, 90))


@given(pairs=counts, scale=st.sampled_from([0.25, 0.5, 2.0, 8.0]), speeds=speeds)
def test_shares_depend_on_relative_speeds_alone(pairs, scale, speeds):
    assert rank_shares(pairs, speeds) == rank_shares(pairs, [scale * speed for speed in speeds])


def test_speeds_move_half_way_to_a_measurement_and_a_rank_without_rows_towards_the_average():
    """A rank that measured slow once, and so got no rows, must get some again."""
    assert smoothed_speeds([0.1, 8.0], [None, 8.0]) == [4.05, 8.0]
    assert smoothed_speeds(None, [None, None]) is None
    assert smoothed_speeds(None, [4.0, None, 2.0]) == [4.0, 3.0, 2.0]
    assert smoothed_speeds([4.0, 2.0], [2.0, None]) == [3.0, 2.0]
    assert smoothed_speeds([4.0, 2.0], [None, None]) == [4.0, 2.0]
