"""Time-step parallelism over ranks: the rows (a sample at one of its trained timesteps) of a step, dealt out evenly.

Invariant: every row is in one share, and shares differ by one row at most, however ragged the samples are
(tests/property/test_pipeline_gradient_property.py).
"""

from collections.abc import Sequence
from itertools import pairwise


def shares(places: Sequence[int], ranks: int) -> list[list[tuple[int, int]]]:
    """(sample, place) pairs of each rank; sample i has `places[i]` of them.

    In stretches along the samples, so that most samples are on one rank only and are sent there once.
    """
    if ranks < 1 or any(count < 0 for count in places):
        raise ValueError(f"rows of {list(places)} places cannot be shared by {ranks} ranks; give at least one rank.")
    rows = [(sample, place) for sample, count in enumerate(places) for place in range(count)]
    bounds = [len(rows) * rank // ranks for rank in range(ranks + 1)]
    return [rows[start:stop] for start, stop in pairwise(bounds)]
