"""Seconds of every activity in equal parts of a time range, for one row of the timeline or for many together.

Invariant: the parts of a range add up to the spans inside it (tests/unit/test_timeline_bins.py).
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from spotlight.core.work import Activity
from spotlight.surface.activity_names import SPANNED
from spotlight.surface.timeline import SlotRow

Floats: TypeAlias = NDArray[np.float64]
LEAST_SHARE = 0.25
"""Share of a part that must be covered by spans for the part to be shown as busy."""


class SpanIndex:
    """The spans of some rows by activity; `update` takes only what is new, because the last span may still grow."""

    def __init__(self, rows: Sequence[SlotRow]) -> None:
        self.rows = rows
        self._taken = [0] * len(rows)
        self._starts: dict[Activity, list[float]] = {}
        self._ends: dict[Activity, list[float]] = {}
        self.update()

    def update(self) -> None:
        for number, row in enumerate(self.rows):
            closed = len(row.spans) - 1
            for span in row.spans[self._taken[number] : max(0, closed)]:
                self._starts.setdefault(span.activity, []).append(span.start)
                self._ends.setdefault(span.activity, []).append(span.end)
            self._taken[number] = max(self._taken[number], closed)

    def seconds(self, edges: Floats) -> dict[Activity, Floats]:
        """Seconds of each activity between neighbouring edges, summed over the rows."""
        last = [row.spans[-1] for row in self.rows if row.spans]
        found: dict[Activity, Floats] = {}
        for activity in SPANNED:
            newest = [span for span in last if span.activity is activity]
            starts = [*self._starts.get(activity, ()), *(span.start for span in newest)]
            ends = [*self._ends.get(activity, ()), *(span.end for span in newest)]
            if starts:
                found[activity] = between(starts, ends, edges)
        return found

    def held(self, edges: Floats, at: float) -> Floats:
        """Seconds with a machine between neighbouring edges, summed over the rows."""
        lives = [life for row in self.rows for life in row.lives]
        return between([life.start for life in lives], [at if life.end is None else life.end for life in lives], edges)


def between(starts: Sequence[float], ends: Sequence[float], edges: Floats) -> Floats:
    """Seconds that intervals cover between neighbouring edges; intervals that overlap count several times."""
    begun, over = np.sort(np.asarray(starts, dtype=np.float64)), np.sort(np.asarray(ends, dtype=np.float64))
    return np.maximum(0.0, np.diff(_passed(begun, edges) - _passed(over, edges)))


def _passed(times: Floats, edges: Floats) -> Floats:
    """Sum over the earlier times of the seconds since then, at each edge."""
    sums = np.concatenate(([0.0], np.cumsum(times)))
    count = np.searchsorted(times, edges, side="right")
    return count * edges - sums[count]


def edges_of(start: float, end: float, bins: int) -> Floats:
    return np.linspace(start, end, bins + 1)


def dominant_runs(seconds: dict[Activity, Floats], width: float) -> list[tuple[int, int, Activity]]:
    """Runs of parts by their dominant activity, never more than there are parts: (first, end, activity)."""
    if not seconds:
        return []
    kinds = list(seconds)
    table = np.stack([seconds[kind] for kind in kinds])
    chosen = np.where(table.sum(axis=0) < LEAST_SHARE * width, -1, table.argmax(axis=0))
    cuts = np.flatnonzero(np.diff(chosen)) + 1
    starts, ends = np.concatenate(([0], cuts)), np.concatenate((cuts, [len(chosen)]))
    return [
        (int(first), int(end), kinds[chosen[first]])
        for first, end in zip(starts, ends, strict=True)
        if chosen[first] >= 0
    ]
