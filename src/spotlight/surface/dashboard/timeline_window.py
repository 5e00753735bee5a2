"""A part of the timeline at the resolution of a screen: what the page's canvas draws.

Runs of bins have one dominant activity each, so a window never has more of them than it has bins, however long the run
is. A pool of more slots than rows fit is shown by class and zone: numbers of slots per activity and bin.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from spotlight.surface.activity_names import SPANNED
from spotlight.surface.panels.timeline_panel import MOST_SLOTS, by_place, group_name, grouped
from spotlight.surface.projections import RunView
from spotlight.surface.timeline import SlotRow
from spotlight.surface.timeline_bins import Floats, SpanIndex, dominance, dominant_runs, edges_of

CODES = {activity: number for number, activity in enumerate(SPANNED)}
"""Numbers of the activities on the wire."""
MOST_BINS = 4000
COARSE = 4
"""Bins per digit of shares."""
CROWDED = 0.2
"""Runs per bin above which a row shows shares: the dominant activity would alternate from bin to bin."""
DOMINANT = 0.75
"""Share of the dominant activity, in the mean over the bins, below which a row shows shares."""
DIGITS = np.frombuffer(b"0123456789abcdefghijklmnopqrstuvwxyz", dtype=np.uint8)
MOST_MARKS = 2000
"""Marks of one kind in a window; more are thinned by bins."""


class WindowRow(msgspec.Struct, frozen=True, kw_only=True):
    """One slot, or all slots of a class and zone."""

    name: str
    group: str
    """Its class and zone."""
    state: str
    runs: list[int]
    """First bin, end bin and code of each run, in a row."""
    held: list[tuple[float, float]]
    """Times with a machine."""
    notices: list[tuple[float, float, str, bool]]
    """Start, end, kind, and whether it was withdrawn."""
    losses: list[tuple[float, bool]]
    """Time, and whether it was announced."""
    shares: dict[int, str] = {}
    """Instead of runs, where many activities share a bin: a digit per `COARSE` bins and code, 0 to z for 0 to 1."""
    slots: int = 1
    stack: dict[int, list[float]] = {}
    """For several slots: mean number of slots by code and bin."""
    present: list[float] = []
    """For several slots: mean number with a machine, by bin."""


class TimelineWindow(msgspec.Struct, frozen=True, kw_only=True):
    start: float
    end: float
    bins: int
    seq: int
    at: float
    """Run time of the newest record."""
    is_grouped: bool
    rows: list[WindowRow]
    iterations: list[float]
    restarts: list[float]
    regroups: list[tuple[float, str]]
    """Time, and a sentence."""
    reconnects: list[tuple[float, str]]


class TimelineIndex:
    """Spans of a view's rows, kept between windows."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._rows: dict[str, SpanIndex] = {}
        self._groups: dict[str, SpanIndex] = {}
        self._slots = 0

    def window(self, start: float, end: float, bins: int) -> TimelineWindow:
        view = self._view
        bins = max(COARSE, min(bins, MOST_BINS) // COARSE * COARSE)
        end = max(end, start + 1e-3)
        edges = edges_of(start, end, bins)
        rows = list(view.timeline.rows.values())
        is_grouped = len(rows) > MOST_SLOTS
        shown = self._group_rows(rows, edges) if is_grouped else [self._row(row, edges) for row in by_place(rows)]
        inside = _Inside(start, end)
        return TimelineWindow(
            start=start,
            end=end,
            bins=bins,
            seq=view.seq,
            at=view.at,
            is_grouped=is_grouped,
            rows=shown,
            iterations=inside.times([done.at for done in view.iterations]),
            restarts=inside.times(view.timeline.restarts),
            regroups=inside.marks([(one.at, f"{one.node}: {one.reason}") for one in view.crews.regroups]),
            reconnects=inside.marks(view.timeline.reconnects),
        )

    def _row(self, row: SlotRow, edges: Floats) -> WindowRow:
        index = self._rows.get(row.name)
        if index is None:
            index = self._rows[row.name] = SpanIndex([row])
        index.update()
        width = float(edges[1] - edges[0])
        seconds = index.seconds(edges)
        runs = dominant_runs(seconds, width)
        is_crowded = len(runs) > CROWDED * (len(edges) - 1) or dominance(seconds) < DOMINANT
        inside = _Inside(float(edges[0]), float(edges[-1]))
        now = self._view.at
        return WindowRow(
            name=row.name,
            group=group_name(row.slot_class, row.zone),
            state=self._view.timeline.state(row).value,
            runs=[] if is_crowded else [n for first, stop, kind in runs for n in (first, stop, CODES[kind])],
            shares={CODES[kind]: _digits(part, width) for kind, part in seconds.items()} if is_crowded else {},
            held=inside.spans([(life.start, now if life.end is None else life.end) for life in row.lives]),
            notices=[
                (notice.start, min(now, now if notice.end is None else notice.end), notice.kind.value, notice.withdrawn)
                for notice in row.notices
                if inside.meets(notice.start, now if notice.end is None else notice.end)
            ][:MOST_MARKS],
            losses=[(at, noticed) for at, noticed in row.losses if inside.has(at)][:MOST_MARKS],
        )

    def _group_rows(self, rows: Sequence[SlotRow], edges: Floats) -> list[WindowRow]:
        if len(rows) != self._slots:
            self._groups, self._slots = {}, len(rows)
        width = float(edges[1] - edges[0])
        inside = _Inside(float(edges[0]), float(edges[-1]))
        found = []
        for (slot_class, zone), members in grouped(rows).items():
            name = group_name(slot_class, zone)
            index = self._groups.get(name)
            if index is None:
                index = self._groups[name] = SpanIndex(members)
            index.update()
            losses = sorted((at, noticed) for row in members for at, noticed in row.losses if inside.has(at))
            found.append(
                WindowRow(
                    name=name,
                    group=name,
                    state=f"{len(members):,} slots",
                    runs=[],
                    held=[],
                    notices=[],
                    losses=losses[:MOST_MARKS],
                    slots=len(members),
                    stack={CODES[kind]: _slots(part, width) for kind, part in index.seconds(edges).items()},
                    present=_slots(index.held(edges, self._view.at), width),
                )
            )
        return found


class _Inside:
    """What of a list lies in a window."""

    def __init__(self, start: float, end: float) -> None:
        self._start, self._end = start, end

    def has(self, at: float) -> bool:
        return self._start <= at <= self._end

    def meets(self, start: float, end: float) -> bool:
        return start <= self._end and end >= self._start

    def times(self, times: Sequence[float]) -> list[float]:
        return [at for at in times if self.has(at)][:MOST_MARKS]

    def marks(self, marks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
        return [(at, text) for at, text in marks if self.has(at)][:MOST_MARKS]

    def spans(self, spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(start, end) for start, end in spans if self.meets(start, end)][:MOST_MARKS]


def _digits(seconds: Floats, width: float) -> str:
    """The share of each `COARSE` bins, as one digit."""
    shares = seconds.reshape(-1, COARSE).sum(axis=1) / (COARSE * width)
    return DIGITS[np.rint(np.clip(shares, 0.0, 1.0) * (len(DIGITS) - 1)).astype(int)].tobytes().decode()


def _slots(seconds: Floats, width: float) -> list[float]:
    return [round(float(value), 2) for value in seconds / width]
