"""Speeds of many workers, kept up to date change by change: their sum, the fastest, the median.

Invariant: none of these costs more than O(log n) per change, amortised (benchmarks/scheduler/).
"""

from heapq import heapify, heappop, heappush
from math import isfinite
from statistics import median

from spotlight.core.types import WorkerId

UNMEASURED = 1.0
"""Row-steps per second of a worker while nobody's speed is known: any number, as only ratios matter then."""
SMALL = 64
"""So few numbers are sorted anew without a thought."""


class Team:
    """Workers that share some work, by speed."""

    def __init__(self) -> None:
        self._speeds: dict[WorkerId, float] = {}
        self._fastest: list[tuple[float, WorkerId]] = []
        """A heap of (-speed, worker); entries that no longer tell the truth are passed over."""
        self.total = 0.0

    def __len__(self) -> int:
        return len(self._speeds)

    def add(self, worker: WorkerId, speed: float) -> None:
        self._speeds[worker] = speed
        self.total += speed
        heappush(self._fastest, (-speed, worker))
        if len(self._fastest) > 2 * len(self._speeds) + SMALL:
            self._fastest = [(-each, name) for name, each in self._speeds.items()]
            heapify(self._fastest)

    def remove(self, worker: WorkerId) -> None:
        speed = self._speeds.pop(worker)
        # An empty sum is exactly 0 again, so rounding never builds up from one busy spell to the next.
        self.total = self.total - speed if self._speeds else 0.0

    @property
    def fastest(self) -> float:
        while self._speeds.get(self._fastest[0][1]) != -self._fastest[0][0]:
            heappop(self._fastest)
        return -self._fastest[0][0]


class Measured:
    """The speeds that workers reported; of many, the median is told as of the last eighth of changes."""

    def __init__(self) -> None:
        self._speeds: dict[WorkerId, float] = {}
        self._median = UNMEASURED
        self._changes = 0

    def set(self, worker: WorkerId, speed: float) -> None:
        self._speeds[worker] = speed
        self._changes += 1

    def forget(self, worker: WorkerId) -> None:
        if self._speeds.pop(worker, None) is not None:
            self._changes += 1

    @property
    def median(self) -> float:
        if self._changes and (len(self._speeds) <= SMALL or self._changes >= len(self._speeds) // 8):
            self._changes = 0
            self._median = median(self._speeds.values()) if self._speeds else UNMEASURED
        return self._median


def usable_speed(reported: float | None) -> float | None:
    """The speed that a worker reports, unless it is no speed at all."""
    return reported if reported is not None and isfinite(reported) and reported > 0 else None
