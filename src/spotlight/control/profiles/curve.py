"""Seconds by batch, between and beyond the batches that were timed.

    batch below the first point   the first point's seconds: a smaller batch may be padded to it
    between two points            linear in total seconds
    beyond the last point         proportional: the last point's seconds per row

Where a larger batch was timed as quicker than a smaller one (both bound by launches, so noise decides), the smaller one
is taken to be as quick, because it too may be padded.

Invariant: seconds are never negative, never fall as the batch grows, and at every point are its own or those of a
quicker larger batch (tests/property/test_profiles_property.py).
"""

from bisect import bisect_left
from collections.abc import Iterable

from spotlight.core.errors import ConfigError

BY_BATCH = (
    "linear in total seconds between batches, proportional beyond the last, the first point's seconds below the first; "
    "no batch costs more than a larger one that was timed"
)
ONE_FIGURE = "one figure"


class Curve:
    """Seconds of any batch of at least one."""

    def __init__(self, timed: Iterable[tuple[int, float]]) -> None:
        """(batch, seconds), at least one, each batch once."""
        self._batches: list[int] = []
        self._seconds: list[float] = []
        quickest = float("inf")
        for batch, seconds in sorted(timed, reverse=True):
            quickest = min(quickest, seconds)
            self._batches.insert(0, batch)
            self._seconds.insert(0, quickest)

    def seconds(self, batch: int) -> float:
        if batch < 1:
            raise ConfigError(
                f"the seconds of a batch of {batch} were asked for, and there is none of less than 1; ask for at "
                "least 1."
            )
        place = bisect_left(self._batches, batch)
        if place == len(self._batches):
            return self._seconds[-1] * batch / self._batches[-1]
        above, upper = self._batches[place], self._seconds[place]
        if above == batch or place == 0:
            return upper
        below, lower = self._batches[place - 1], self._seconds[place - 1]
        # Rounding may pass the upper end, and then a larger batch would be the quicker one.
        return min(upper, lower + (upper - lower) * (batch - below) / (above - below))
