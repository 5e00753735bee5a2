"""Choice of an efficient batch size: one rule for training, rollouts and profiles.

    MEASURING --more rows save less than 5 %, or do not fit, or `most` is reached--> SETTLED

Sizes double from the first one, which is halved until it fits. The chosen size is the smallest whose seconds per row
are within 5 % of the best: a larger batch takes more memory and ends later, and gains almost nothing. A search with
patience continues past some sizes that save too little, because other load on the device may have slowed one of them.
Invariant: the chosen size was measured and fits, unless none did (tests/unit/test_batch_size.py).
"""

from collections.abc import Mapping

WORTH = 0.05
"""Smallest relative difference in seconds per row that counts."""


def efficient(seconds_per_row: Mapping[int, float]) -> int:
    """Return the smallest size within 5 % of the best seconds per row."""
    best = min(seconds_per_row.values())
    return min(size for size, seconds in seconds_per_row.items() if seconds <= best * (1 + WORTH))


class SizeSearch:
    """A search over batch sizes: the next size to measure, and the best one so far."""

    def __init__(self, most: int | None = None, first: int = 1, patience: int = 1) -> None:
        """`most` is the largest useful size, None for no limit; the search ends after `patience` sizes in a row that
        save too little."""
        self.candidate = first if most is None else min(first, most)
        """Size to measure next."""
        self.is_settled = False
        self._most = most
        self._patience = patience
        self._without_gain = 0
        """Number of sizes in a row that saved too little."""
        self._seconds_per_row: dict[int, float] = {}
        """Seconds per row of the sizes that fit."""

    @property
    def is_measured(self) -> bool:
        """Whether at least one size fits."""
        return bool(self._seconds_per_row)

    @property
    def chosen(self) -> int:
        return efficient(self._seconds_per_row) if self._seconds_per_row else 1

    def measured(self, seconds_per_row: float) -> None:
        """Record that the candidate fits, with its seconds per row."""
        size, best = self.candidate, min(self._seconds_per_row.values(), default=float("inf"))
        self._seconds_per_row[size] = seconds_per_row
        self._without_gain = self._without_gain + 1 if seconds_per_row > (1 - WORTH) * best else 0
        self.is_settled = self._without_gain == self._patience or size == self._most
        self.candidate = 2 * size if self._most is None else min(2 * size, self._most)

    def too_large(self) -> None:
        """Record that the candidate does not fit."""
        if self._seconds_per_row or self.candidate == 1:
            self.is_settled = True
        else:
            self.candidate = self._most = self.candidate // 2

    def settle(self) -> None:
        """End the search with the sizes measured so far."""
        self.is_settled = True
