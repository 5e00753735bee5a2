"""Which batch size is efficient: one rule for training, rollouts and profiles.

    MEASURING --more rows save less than 5 %, or do not fit, or `most` is reached--> SETTLED

Sizes double from the first one, which is halved until it fits. Chosen is the smallest size whose seconds per row are
within 5 % of the best: a larger batch takes more memory and ends later, and gains next to nothing. A search with
patience goes on past some sizes that save too little, because one of them may have been timed while something else kept
the device busy. Invariant: the chosen size was measured and fits, unless none did (tests/unit/test_batch_size.py).
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

    def __init__(self, most: int | None = None, first: int = 1, patience: int = 1) -> None:
        """`most` is the largest size of use, None for no limit; `patience` is how many sizes in a row that save too
        little end the search."""
        self.candidate = first if most is None else min(first, most)
        """To be measured next."""
        self.is_settled = False
        self._most = most
        self._patience = patience
        self._in_vain = 0
        """Sizes that saved too little, since one saved enough."""
        self._seconds_per_row: dict[int, float] = {}
        """Of the sizes that fit."""

    @property
    def chosen(self) -> int:
        return efficient(self._seconds_per_row) if self._seconds_per_row else 1

    def measured(self, seconds_per_row: float) -> None:
        """The candidate fits, and takes so long."""
        size, best = self.candidate, min(self._seconds_per_row.values(), default=float("inf"))
        self._seconds_per_row[size] = seconds_per_row
        self._in_vain = self._in_vain + 1 if seconds_per_row > (1 - WORTH) * best else 0
        self.is_settled = self._in_vain == self._patience or size == self._most
        self.candidate = 2 * size if self._most is None else min(2 * size, self._most)

    def too_large(self) -> None:
        """The candidate does not fit."""
        if self._seconds_per_row or self.candidate == 1:
            self.is_settled = True
        else:
            self.candidate = self._most = self.candidate // 2

    def settle(self) -> None:
        """There is no time to measure more."""
        self.is_settled = True
