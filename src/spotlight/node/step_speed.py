"""How fast a worker steps: alone, and as the leader of a crew, so that the scheduler's shares fit the crew.

Invariant (tests/unit/test_pace.py): a part-filled batch says little about a full one, so the speed that is told comes
from batches at least half full; what a crew gains is the ratio of its steps to steps alone of as many rows.
"""

from statistics import fmean

WEIGHT = 0.1
"""Of a new measurement; an average over about ten steps."""


class StepSpeed:
    """Averages, by degree."""

    def __init__(self) -> None:
        self._full: float | None = None
        """Row-steps per second alone, at a full batch."""
        self._seconds: dict[tuple[int, int], float] = {}
        """Of a step, by degree and rows."""

    def stepped(self, rows: int, room: int, degree: int, seconds: float) -> None:
        if rows < 1 or seconds <= 0:
            return
        key = (degree, rows)
        self._seconds[key] = _mixed(self._seconds.get(key), seconds)
        if degree == 1 and rows * 2 >= room:
            self._full = _mixed(self._full, rows / seconds)

    def gain(self, degree: int) -> float | None:
        """How many times faster than alone, from row counts that both were seen with; None before that."""
        ratios = [
            self._seconds[1, rows] / seconds
            for (seen, rows), seconds in sorted(self._seconds.items())
            if seen == degree and (1, rows) in self._seconds
        ]
        return fmean(ratios) if ratios else None

    def row_steps_per_s(self, degree: int) -> float | None:
        """At a full batch; a crew's is the gain times that alone."""
        if self._full is None or degree == 1:
            return self._full
        return self._full * (self.gain(degree) or 1.0)


def _mixed(before: float | None, seen: float) -> float:
    return seen if before is None else (1 - WEIGHT) * before + WEIGHT * seen
