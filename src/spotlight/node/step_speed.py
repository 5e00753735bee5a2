"""Measured step speed of a worker, alone and as the leader of a crew; the scheduler sizes shares by it.

Invariant (tests/unit/test_step_speed.py): the reported speed comes only from batches at least half full, once there was
one; a crew's gain is the ratio of step times alone and in the crew at equal row counts.
"""

from statistics import fmean

from spotlight.control.scheduler.settings import SATURATING_ROWS

WEIGHT = 0.1
"""Weight of a new measurement in the running average, which covers about ten steps."""


class StepSpeed:
    """Running averages, by degree."""

    def __init__(self) -> None:
        self._full: float | None = None
        """Row-steps per second alone, at a full batch."""
        self._small: float | None = None
        """The same from smaller batches, whose steps take as long as those of SATURATING_ROWS rows."""
        self._seconds: dict[tuple[int, int], float] = {}
        """Seconds per step, by degree and rows."""

    def record(self, rows: int, capacity: int, degree: int, seconds: float) -> None:
        if rows < 1 or seconds <= 0:
            return
        key = (degree, rows)
        self._seconds[key] = _averaged(self._seconds.get(key), seconds)
        if degree == 1 and rows * 2 >= capacity:
            self._full = _averaged(self._full, rows / seconds)
        elif degree == 1:
            self._small = _averaged(self._small, max(rows, SATURATING_ROWS) / seconds)

    def saturating_rows(self) -> float | None:
        """Rows that would take as long, at a full batch's speed, as a step of the smallest batch; None before a small
        batch.

        The smallest batch takes no longer than any larger one, so a slow step of it counts only until one was timed.
        """
        alone = {rows: seconds for (degree, rows), seconds in self._seconds.items() if degree == 1}
        if self._full is None or min(alone) > SATURATING_ROWS:
            return None
        return max(1.0, min(alone.values()) * self._full)

    def gain(self, degree: int) -> float | None:
        """Speed relative to alone, over the row counts measured at both degrees; None if there are none."""
        ratios = [
            self._seconds[1, rows] / seconds
            for (at, rows), seconds in sorted(self._seconds.items())
            if at == degree and (1, rows) in self._seconds
        ]
        return fmean(ratios) if ratios else None

    def row_steps_per_s(self, degree: int) -> float | None:
        """Speed at a full batch; for a crew, the gain times the speed alone."""
        alone = self._small if self._full is None else self._full
        if alone is None or degree == 1:
            return alone
        return alone * (self.gain(degree) or 1.0)


def _averaged(before: float | None, new: float) -> float:
    return new if before is None else (1 - WEIGHT) * before + WEIGHT * new
