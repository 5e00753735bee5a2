"""Seconds of every activity in equal parts of a time range, for one row of the timeline or for many together.

Invariant: the parts of a range add up to the spans inside it (tests/unit/test_timeline_bins.py).
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from spotlight.core.work import Activity
from spotlight.surface.activity_names import SPANNED
from spotlight.surface.timeline import SlotRow, TimelineSpan

Floats: TypeAlias = NDArray[np.float64]
LEAST_SHARE = 0.25
"""Share of a part that must be covered by spans for the part to be shown as busy."""


class GrowingTimes:
    """Times with the sums of all before each of them; appending is cheap if the new ones are later."""

    def __init__(self) -> None:
        self._times: Floats = np.empty(64)
        self._sums: Floats = np.zeros(65)
        self._count = 0

    def extend(self, new: Sequence[float]) -> None:
        if not new:
            return
        added = np.sort(np.asarray(new, dtype=np.float64))
        first, end = self._count, self._count + len(added)
        if first and added[0] < self._times[first - 1]:
            added = np.sort(np.concatenate((self._times[:first], added)))
            first = 0
        if end > len(self._times):
            self._times = np.concatenate((self._times[:first], np.empty(2 * end - first)))
            self._sums = np.concatenate((self._sums[: first + 1], np.empty(2 * end - first)))
        self._times[first:end] = added
        self._sums[first + 1 : end + 1] = self._sums[first] + np.cumsum(added)
        self._count = end

    def passed(self, edges: Floats) -> Floats:
        """Sum over the earlier times of the seconds since then, at each edge."""
        count = np.searchsorted(self._times[: self._count], edges, side="right")
        return count * edges - self._sums[count]


class SpanIndex:
    """The spans of some rows by activity; `update` takes only what is new, because the last span may still grow."""

    def __init__(self, rows: Sequence[SlotRow]) -> None:
        self.rows = rows
        self._taken = [0] * len(rows)
        self._starts: dict[Activity, GrowingTimes] = {}
        self._ends: dict[Activity, GrowingTimes] = {}
        self.update()

    def update(self) -> None:
        new: dict[Activity, list[TimelineSpan]] = {}
        for number, row in enumerate(self.rows):
            closed = max(0, len(row.spans) - 1)
            for span in row.spans[self._taken[number] : closed]:
                new.setdefault(span.activity, []).append(span)
            self._taken[number] = max(self._taken[number], closed)
        for activity, spans in new.items():
            self._starts.setdefault(activity, GrowingTimes()).extend([span.start for span in spans])
            self._ends.setdefault(activity, GrowingTimes()).extend([span.end for span in spans])

    def seconds(self, edges: Floats) -> dict[Activity, Floats]:
        """Seconds of each activity between neighbouring edges, summed over the rows."""
        last = [row.spans[-1] for row in self.rows if row.spans]
        found: dict[Activity, Floats] = {}
        for activity in SPANNED:
            newest = [span for span in last if span.activity is activity]
            parts = between([span.start for span in newest], [span.end for span in newest], edges) if newest else 0.0
            if activity in self._starts:
                passed = self._starts[activity].passed(edges) - self._ends[activity].passed(edges)
                parts = parts + np.maximum(0.0, np.diff(passed))
            if activity in self._starts or newest:
                found[activity] = np.asarray(parts)
        return found

    def held(self, edges: Floats, at: float) -> Floats:
        """Seconds with a machine between neighbouring edges, summed over the rows."""
        lives = [life for row in self.rows for life in row.lives]
        return between([life.start for life in lives], [at if life.end is None else life.end for life in lives], edges)


def between(starts: Sequence[float], ends: Sequence[float], edges: Floats) -> Floats:
    """Seconds that intervals cover between neighbouring edges; intervals that overlap count several times."""
    begun, over = GrowingTimes(), GrowingTimes()
    begun.extend(starts)
    over.extend(ends)
    return np.maximum(0.0, np.diff(begun.passed(edges) - over.passed(edges)))


def edges_of(start: float, end: float, bins: int) -> Floats:
    return np.linspace(start, end, bins + 1)


def dominance(seconds: dict[Activity, Floats]) -> float:
    """Mean share of the dominant activity in the busy time of a part; 1 without any."""
    if not seconds:
        return 1.0
    table = np.stack(list(seconds.values()))
    busy = table.sum(axis=0)
    return float(np.mean(table.max(axis=0)[busy > 0] / busy[busy > 0])) if np.any(busy > 0) else 1.0


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
