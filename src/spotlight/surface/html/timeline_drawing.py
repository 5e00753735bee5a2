"""The geometry of the timeline as SVG: one row per slot, or per class and zone of a large pool.

The dominant activity of every pixel, losses as ticks, notices hatched; a withdrawn notice ends with a bar.
`templates/timeline.svg` writes it.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from spotlight.core.work import Activity, SlotClass
from spotlight.surface.activity_names import LABELS
from spotlight.surface.formats import clock, percent
from spotlight.surface.html.chart_drawing import AxisTick
from spotlight.surface.html.scales import Scale, time_ticks
from spotlight.surface.panels.timeline_panel import MOST_SLOTS, by_place, group_name, grouped
from spotlight.surface.projections import RunView
from spotlight.surface.timeline import NoticeSpan, SlotRow
from spotlight.surface.timeline_bins import Floats, SpanIndex, dominant_runs, edges_of

WIDTH, LEFT, RIGHT = 1080, 116, 1008
ROW, TALL, GAP, HEADING, AXIS = 20, 54, 5, 26, 34
MOST_BOUNDARIES, MOST_TICKS, MOST_RUNS = 60, 40, 220
"""Limits above which the drawing changes to a coarser one."""
BIN = 8
"""Pixels per bin of stacked shares."""
Boxes: TypeAlias = dict[Activity, list[tuple[float, float, float, float]]]
"""Left, top, width and height by activity."""


class DrawnNotice(msgspec.Struct, frozen=True, kw_only=True):
    x: float
    width: float
    title: str
    withdrawn: float | None
    """Place of the bar that ends a withdrawn notice."""


class DrawnLoss(msgspec.Struct, frozen=True, kw_only=True):
    x: float
    noticed: bool
    title: str


class DrawnRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    y: float
    height: int
    tracks: list[tuple[float, float]]
    """Left and width of the time with a machine."""
    blocks: list[tuple[str, str]]
    """Activity and path."""
    notices: list[DrawnNotice]
    losses: list[DrawnLoss]
    crowded: list[int]
    """Places of losses of a long run, one for every few pixels with a loss."""
    busy: str


class TimelineDrawing(msgspec.Struct, frozen=True, kw_only=True):
    width: int
    height: float
    right: int
    left: int
    top: int
    bottom: float
    headings: list[AxisTick]
    rows: list[DrawnRow]
    boundaries: list[float]
    restarts: list[float]
    reconnects: list[float]
    ticks: list[AxisTick]
    has_stacks: bool
    """Whether heights show shares, where many activities share a few pixels."""


def drawn_timeline(view: RunView) -> TimelineDrawing:
    """The rows, reserved first, over one time axis."""
    x = Scale(0.0, max(view.at, 1e-9), LEFT, RIGHT)
    rows = list(view.timeline.rows.values())
    drawn, headings, y = [], [], 0.0
    for (slot_class, zone), members in grouped(rows).items():
        headings.append(AxisTick(y + 17, group_name(slot_class, zone)))
        y += HEADING
        if len(rows) > MOST_SLOTS:
            drawn.append(_drawn_group(view, slot_class, members, x, y))
            y += TALL + GAP + 4
            continue
        for member in by_place(members):
            drawn.append(_drawn_slot(view, member, x, y))
            y += ROW + GAP
        y += 4
    few = len(view.iterations) <= MOST_BOUNDARIES
    return TimelineDrawing(
        width=WIDTH,
        height=y + AXIS - 14,
        right=RIGHT,
        left=LEFT,
        top=HEADING - 4,
        bottom=y - 8,
        headings=headings,
        rows=drawn,
        boundaries=[x(done.at) for done in view.iterations] if few else [],
        restarts=[x(at) for at in view.timeline.restarts],
        reconnects=sorted({round(x(at)) for at, _ in view.timeline.reconnects}),
        ticks=[AxisTick(x(tick), clock(tick)) for tick in time_ticks(view.at)],
        has_stacks=len(rows) > MOST_SLOTS or any(len(row.spans) > MOST_RUNS for row in rows),
    )


def _drawn_slot(view: RunView, slot: SlotRow, x: Scale, y: float) -> DrawnRow:
    index = SpanIndex([slot])
    pixels = RIGHT - LEFT
    edges = edges_of(0.0, x.high, pixels)
    runs = dominant_runs(index.seconds(edges), x.high / pixels)
    boxes = _whole(runs) if len(runs) <= MOST_RUNS else _stacked(index, x.high, 1, ROW)
    crowded = len(slot.losses) > MOST_TICKS
    shares = slot.activity_shares(view.at)
    summary = ", ".join(f"{LABELS[one]} {percent(shares[one])}" for one in LABELS if one in shares) or "nothing yet"
    summary += f"; in a crew {percent(shared)}" if (shared := slot.crew_share(view.at)) else ""
    return DrawnRow(
        name=slot.name,
        title=f"{slot.name}: {summary}",
        y=y,
        height=ROW,
        tracks=[_track(life.start, life.end, x, view.at) for life in slot.lives],
        blocks=_paths(boxes, y),
        notices=[] if crowded else [_notice(notice, x, view.at) for notice in slot.notices],
        losses=[] if crowded else [_loss(at, noticed, x) for at, noticed in slot.losses],
        crowded=sorted({4 * round(x(at) / 4) for at, _ in slot.losses}) if crowded else [],
        busy=percent(min(1.0, sum(shares.values()))),
    )


def _drawn_group(view: RunView, slot_class: SlotClass, rows: Sequence[SlotRow], x: Scale, y: float) -> DrawnRow:
    """All slots of a class and zone: heights are numbers of slots."""
    index = SpanIndex(rows)
    boxes = _stacked(index, x.high, len(rows), TALL)
    edges = edges_of(0.0, x.high, (RIGHT - LEFT) // BIN)
    held = index.held(edges, view.at) / (x.high / (len(edges) - 1)) / len(rows) * TALL
    track = "".join(
        f"M{LEFT + BIN * n} {y + TALL - high:.1f}h{BIN}V{y + TALL:g}h-{BIN}z" for n, high in enumerate(held) if high > 0
    )
    held_s = sum(row.held_until(view.at) for row in rows)
    busy = percent(min(1.0, sum(sum(row.seconds.values()) for row in rows) / held_s)) if held_s else "–"
    return DrawnRow(
        name=f"{len(rows):,} slots",
        title=f"{len(rows):,} {slot_class.value} slots, busy {busy} of the time with a machine",
        y=y,
        height=TALL,
        tracks=[],
        blocks=[("held", track), *_paths(boxes, y)],
        notices=[],
        losses=[],
        crowded=sorted({4 * round(x(at) / 4) for row in rows for at, _ in row.losses}),
        busy=busy,
    )


def _track(start: float, end: float | None, x: Scale, now: float) -> tuple[float, float]:
    left, right = x(start), x(now if end is None else end)
    return left, max(0.6, right - left)


def _paths(boxes: Boxes, y: float) -> list[tuple[str, str]]:
    return [
        (one.value, "".join(f"M{left:g} {y + top:g}h{wide:g}v{high:g}h{-wide:g}z" for left, top, wide, high in members))
        for one, members in boxes.items()
    ]


def _whole(runs: Sequence[tuple[int, int, Activity]]) -> Boxes:
    """Boxes of full height."""
    boxes: Boxes = {}
    for first, end, activity in runs:
        boxes.setdefault(activity, []).append((LEFT + first, 0.0, end - first, ROW))
    return boxes


def _stacked(index: SpanIndex, until: float, slots: int, height: int) -> Boxes:
    """Boxes as high as their share: where a pixel holds many spans, the dominant one alternates."""
    bins = (RIGHT - LEFT) // BIN
    seconds: dict[Activity, Floats] = index.seconds(edges_of(0.0, until, bins))
    width = until / bins * slots
    boxes: Boxes = {}
    for number in range(bins):
        bottom = float(height)
        for activity, spent in seconds.items():
            high = round(height * min(1.0, float(spent[number]) / width), 2)
            bottom -= high
            if high > 0:
                box = (LEFT + BIN * number, round(max(0.0, bottom), 2), BIN, high)
                boxes.setdefault(activity, []).append(box)
    return boxes


def _notice(notice: NoticeSpan, x: Scale, now: float) -> DrawnNotice:
    until = now if notice.end is None else min(notice.end, now)
    title = f"{notice.kind.value} notice at {clock(notice.start)}"
    title += f", withdrawn at {clock(until)}" if notice.withdrawn else ""
    return DrawnNotice(
        x=x(notice.start),
        width=max(1.5, x(until) - x(notice.start)),
        title=title,
        withdrawn=x(until) if notice.withdrawn else None,
    )


def _loss(at: float, noticed: bool, x: Scale) -> DrawnLoss:
    how = "after a notice" if noticed else "without notice"
    return DrawnLoss(x=x(at), noticed=noticed, title=f"lost at {clock(at)}, {how}")
