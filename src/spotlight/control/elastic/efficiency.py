"""Speed-up of a crew over one slot, by degree and image tokens: where SP degree enters the cost model.

The defaults are for Qwen-Image-like models on one node and only a start; a profile replaces them and measurements
refine them. Published: 4096 tokens at 2 and 4 (Qwen-Image 1024x1024, ring, A100: 75 and 48 % of ideal) and 16384 tokens
(2048x2048, Ulysses, H800: 86, 71 and 46 % at 2, 4 and 8). Derived: 1024 and 6400 tokens, from counted arithmetic at 400
TFLOP/s with replicated text, 240 all-to-alls of 20 us and their volume at 200 GB/s, scaled by published over modelled
at the published sizes; degrees 3 and 6 lie between their neighbours, and 8 at 4096 tokens follows the slope at 16384.

Invariant: a speed-up is between LOWEST and the degree, is 1 for one slot, and is monotone in tokens wherever the table
is (tests/property/test_layout_property.py).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log

Entry = tuple[int, int, float]
"""Image tokens, degree, speed-up over one slot."""

DEFAULTS: tuple[Entry, ...] = (
    *((1024, 2, 1.24), (1024, 3, 1.33), (1024, 4, 1.38), (1024, 8, 1.38)),
    *((4096, 2, 1.50), (4096, 4, 1.92), (4096, 8, 2.20)),
    *((6400, 2, 1.62), (6400, 3, 2.05), (6400, 4, 2.38), (6400, 6, 2.75), (6400, 8, 3.00)),
    *((16384, 2, 1.72), (16384, 4, 2.84), (16384, 8, 3.68)),
)
LOWEST = 0.1
SMOOTHING = 0.2
"""Weight of a new measurement in the running average of a speed."""
DOUBT = 3.0
"""Weight of the table, in measurements; infinite to ignore measurements."""


@dataclass(slots=True)
class _Speed:
    """Running average of row-steps per second."""

    average: float
    count: int = 1

    def add(self, speed: float) -> None:
        self.count += 1
        self.average += max(SMOOTHING, 1 / self.count) * (speed - self.average)


class Efficiency:
    """Speed-ups from a table, corrected by the measured speeds of this node's crews."""

    def __init__(self, table: Sequence[Entry] = DEFAULTS, doubt: float = DOUBT) -> None:
        self._doubt = doubt
        self._table: dict[int, dict[int, float]] = {}
        """Speed-ups by degree, then by tokens."""
        for tokens, degree, speed_up in sorted(table):
            self._table.setdefault(degree, {})[tokens] = speed_up
        self._measured: dict[tuple[int, int], _Speed] = {}

    def measured(self, tokens: int, degree: int, row_steps_per_s: float) -> None:
        """Add a measured speed, per unit of the slots' relative speed; invalid values are ignored."""
        if not isfinite(row_steps_per_s) or row_steps_per_s <= 0:
            return
        known = self._measured.get((tokens, degree))
        if known is None:
            self._measured[tokens, degree] = _Speed(row_steps_per_s)
        else:
            known.add(row_steps_per_s)

    def speed_up(self, tokens: int, degree: int) -> float:
        if degree <= 1:
            return 1.0
        start = self._tabled(tokens, degree)
        known = self._measured.get((tokens, degree))
        alone = self._alone(tokens, degree)
        if known is None or alone is None:
            return start
        trust = known.count / (known.count + self._doubt)
        return _bounded((1 - trust) * start + trust * known.average / alone, degree)

    def _alone(self, tokens: int, degree: int) -> float | None:
        """Speed of one slot: measured, else inferred from the smallest other crew that was."""
        for other in sorted(degree_ for tokens_, degree_ in self._measured if tokens_ == tokens):
            if other == degree:
                return None
            return self._measured[tokens, other].average / self._tabled(tokens, other)
        return None

    def _tabled(self, tokens: int, degree: int) -> float:
        """Linear between the table's neighbouring degrees; beyond the table, the value of its largest degree."""
        if degree == 1:
            return 1.0
        degrees = sorted({1, *self._table})
        place = bisect_left(degrees, degree)
        if place == len(degrees):
            return _bounded(self._at(tokens, degrees[-1]), degree)
        above = degrees[place]
        if above == degree:
            return _bounded(self._at(tokens, degree), degree)
        below = degrees[place - 1]
        share = (degree - below) / (above - below)
        return _bounded((1 - share) * self._at(tokens, below) + share * self._at(tokens, above), degree)

    def _at(self, tokens: int, degree: int) -> float:
        """Linear in the logarithm of tokens; below the table the gain shrinks with the tokens, above it is constant."""
        if degree == 1:
            return 1.0
        known = self._table[degree]
        sizes = sorted(known)
        if tokens <= sizes[0]:
            return 1 + (known[sizes[0]] - 1) * tokens / sizes[0]
        if tokens >= sizes[-1]:
            return known[sizes[-1]]
        place = bisect_left(sizes, tokens)
        low, high = sizes[place - 1], sizes[place]
        share = log(tokens / low) / log(high / low)
        return (1 - share) * known[low] + share * known[high]


def _bounded(speed_up: float, degree: int) -> float:
    return min(max(speed_up, LOWEST), float(degree))
