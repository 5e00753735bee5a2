"""Pairs of workers that failed to form or to keep a crew, kept apart for a while that doubles each time.

Invariant: a pair that always fails is tried ever more rarely, so it cannot keep a node from working
(tests/unit/test_regroup_faults.py).
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from math import inf

from spotlight.core.types import WorkerId

Pair = tuple[WorkerId, WorkerId]
"""Two workers in order of their ids."""

FIRST_S = 1.0
LONGEST_S = 60.0
"""Longest separation: a link that flaps for hours costs at most one failed formation a minute."""


class Distrust:
    """Failures by pair, and the time until which each pair is kept apart."""

    def __init__(self) -> None:
        self._failures: dict[Pair, int] = {}
        self._until: dict[Pair, float] = {}

    def failed(self, members: Sequence[WorkerId], blamed: Iterable[WorkerId], now: float) -> None:
        """Keep blamed members apart from all others; if none or all are blamed, keep all apart from one another."""
        culprits = set(blamed) & set(members)
        if culprits == set(members):
            culprits = set()
        for pair in combinations(sorted(members), 2):
            if culprits and not culprits & set(pair):
                continue
            count = self._failures.get(pair, 0) + 1
            self._failures[pair] = count
            self._until[pair] = now + min(FIRST_S * 2.0 ** (count - 1), LONGEST_S)

    def proved(self, members: Sequence[WorkerId]) -> None:
        """Forget the failures of members that worked together."""
        for pair in combinations(sorted(members), 2):
            self._failures.pop(pair, None)
            self._until.pop(pair, None)

    def forget(self, worker: WorkerId) -> None:
        """Forget a worker that is gone; its id is never used again."""
        for pair in [pair for pair in self._failures if worker in pair]:
            self._failures.pop(pair)
            self._until.pop(pair, None)

    def apart(self) -> tuple[Pair, ...]:
        return tuple(sorted(self._until))

    def parts(self, members: Sequence[WorkerId]) -> bool:
        return any(pair in self._until for pair in combinations(sorted(members), 2))

    def lapse(self, now: float) -> tuple[Pair, ...]:
        """Return and release the pairs whose time is over; their failures still count."""
        over = tuple(sorted(pair for pair, until in self._until.items() if until <= now))
        for pair in over:
            del self._until[pair]
        return over

    def next_lapse(self) -> float:
        return min(self._until.values(), default=inf)
