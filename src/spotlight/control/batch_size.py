"""Which batch size is efficient: one rule for training, rollouts and profiles.

    MEASURING --twice the rows save less than 5 %, or do not fit, or `most` is reached--> SETTLED

Sizes double from 1. Chosen is the smallest size whose seconds per row are within 5 % of the best: a larger batch takes
more memory and ends later, and gains next to nothing. Invariant: the chosen size was measured and fits, unless none did
(tests/unit/test_batch_size.py).
"""

from collections.abc import Mapping

WORTH = 0.05
"""Share of the seconds per row that counts as a difference."""


def efficient(seconds_per_row: Mapping[int, float]) -> int:
    """The smallest of these sizes that loses next to nothing against the best one."""
    best = min(seconds_per_row.values())
    return min(size for size, seconds in seconds_per_row.items() if seconds <= best * (1 + WORTH))


class SizeSearch:
    """Says which size to measure next, and which is chosen as far as is known."""

    def __init__(self, most: int | None = None) -> None:
        """`most` is the largest size of use; None for no limit."""
        self.candidate = 1
        """To be measured next."""
        self.is_settled = False
        self._most = most
        self._last = float("inf")
        """Seconds per row of the size before the candidate."""
        self._seconds_per_row: dict[int, float] = {}
        """Of the sizes that fit."""

    @property
    def chosen(self) -> int:
        return efficient(self._seconds_per_row) if self._seconds_per_row else 1

    def measured(self, seconds_per_row: float) -> None:
        """The candidate fits, and takes so long."""
        size = self.candidate
        self._seconds_per_row[size] = seconds_per_row
        self.is_settled = seconds_per_row > (1 - WORTH) * self._last or size == self._most
        self._last = seconds_per_row
        self.candidate = 2 * size if self._most is None else min(2 * size, self._most)

    def settle(self) -> None:
        """The candidate does not fit, or there is no time to measure it."""
        self.is_settled = True
