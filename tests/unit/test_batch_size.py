"""The rule for batch sizes: which are measured, and which is chosen."""

from collections.abc import Callable

import msgspec
import pytest

from spotlight.control.batch_size import SizeSearch, efficient
from spotlight.control.profiles import Operation, Point, Profile, Provenance, Series, Times, efficient_batch
from spotlight.control.profiles.timings import BY_BATCH


def searched(
    most: int | None, seconds: Callable[[int], float], fits: int = 10**9, first: int = 1, patience: int = 1
) -> tuple[int, list[int]]:
    """The chosen size, and the sizes that were tried."""
    search, tried = SizeSearch(most, first, patience), []
    while not search.is_settled:
        tried.append(search.candidate)
        if search.candidate > fits:
            search.too_large()
        else:
            search.measured(seconds(search.candidate) / search.candidate)
    return search.chosen, tried


@pytest.mark.parametrize("most", [1, 2, 3, 43, 171])
def test_launch_bound_batches_grow_to_the_largest_useful_size_and_no_further(most):
    chosen, tried = searched(most, lambda rows: 1.0)
    assert chosen == most == max(tried)


def test_largest_useful_size_that_gains_next_to_nothing_is_not_chosen():
    assert searched(171, lambda rows: max(128.0, rows))[0] == 128
    assert searched(171, lambda rows: float(rows))[0] == 1


def test_size_that_does_not_fit_ends_the_search_at_the_one_before():
    assert searched(171, lambda rows: 1.0, fits=100) == (64, [1, 2, 4, 8, 16, 32, 64, 128])


@pytest.mark.parametrize(
    ("fits", "expected"),
    [(0, (1, [4, 2, 1])), (1, (1, [4, 2, 1])), (2, (2, [4, 2])), (3, (2, [4, 2])), (4, (4, [4, 8]))],
)
def test_first_size_that_does_not_fit_is_halved_until_it_does(fits, expected):
    assert searched(171, lambda rows: 1.0, fits=fits, first=4) == expected


def test_search_begins_no_higher_than_the_largest_useful_size():
    assert searched(3, lambda rows: 1.0, first=4) == (3, [3])


def test_patient_search_goes_past_a_size_that_was_slow_by_chance():
    def seconds(rows: int) -> float:
        return 3.0 if rows == 4 else 1.0

    assert searched(64, seconds)[0] == 2
    assert searched(64, seconds, patience=2)[0] == 64


def test_search_that_measured_nothing_takes_one_row():
    assert searched(171, lambda rows: 1.0, fits=0) == (1, [1])


def test_profile_and_search_choose_by_the_same_rule():
    seconds = {1: 4.0, 2: 4.4, 4: 4.9, 8: 9.4, 16: 20.0}
    points = tuple(Point(batch, 1, taken, taken) for batch, taken in seconds.items())
    series = Series(provenance=Provenance.MEASURED, how="A story's.", points=points)
    timed = {Operation.DENOISE_STEP: Times(interpolation=BY_BATCH, series=(series,))}
    profile = msgspec.structs.replace(Profile.load("cpu-words"), operations=timed)
    assert efficient_batch(profile, Operation.DENOISE_STEP) == searched(16, seconds.__getitem__)[0] == 4
    assert efficient({size: taken / size for size, taken in seconds.items()}) == 4
