"""The timeline chart: one row per slot, the dominant activity of every pixel, losses as ticks, notices hatched.

A withdrawn notice ends with a bar.
"""

from typing import TypeAlias

from spotlight.core.work import Activity, SlotClass
from spotlight.surface.projections import RunView
from spotlight.surface.report import svg
from spotlight.surface.report.formats import clock, count, duration, percent, safe
from spotlight.surface.report.markup import box, empty, legend, row, section, swatch, table
from spotlight.surface.timeline import NoticeSpan, SlotRow

WIDTH, LEFT, RIGHT = 1080, 116, 1008
ROW, GAP, HEADING, AXIS = 20, 5, 26, 34
MOST_BOUNDARIES, MOST_TICKS, MOST_RUNS = 60, 40, 220
"""Limits above which the drawing changes to a coarser one."""
BIN = 8
"""Pixels per bin of stacked shares."""
Blocks: TypeAlias = dict[Activity, list[tuple[float, float, float, float]]]
"""Left, top, width and height by activity."""

LABELS = {
    Activity.TRAIN: "train",
    Activity.ROLLOUT: "roll out",
    Activity.ASSIST: "help to roll out",
    Activity.PREVIEW: "preview",
    Activity.EVALUATION: "evaluate",
    Activity.PUBLISH: "write weights",
    Activity.LOAD: "load weights",
    Activity.SWITCH: "change role",
    Activity.REGROUP: "regroup",
    Activity.LOST: "lost work",
    Activity.START: "start",
    Activity.IDLE: "idle",
}
METERED = (Activity.REGROUP, Activity.LOST)
"""Activities known as sums only, not as spans: only the bill shows them."""
PATTERNS = """<defs>
<pattern id="p-preview" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="6" height="6" class="fill-preview"/><rect width="1.6" height="6" class="pattern"/></pattern>
<pattern id="p-assist" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="6" height="6" class="act-rollout"/><rect width="2.4" height="6" class="act-train"/></pattern>
<pattern id="p-evaluation" width="5" height="5" patternUnits="userSpaceOnUse">
<rect width="5" height="5" class="fill-evaluation"/><circle cx="2.5" cy="2.5" r="1" class="pattern"/></pattern>
<pattern id="p-load" width="4" height="4" patternUnits="userSpaceOnUse">
<rect width="4" height="4" class="fill-load"/><rect width="4" height="1.2" class="pattern"/></pattern>
<pattern id="p-notice" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">
<rect width="5" height="5" class="under"/><rect width="1.8" height="5" class="hatch"/></pattern></defs>"""


def timeline_section(view: RunView) -> str:
    rows = view.timeline.ordered()
    if not rows:
        return empty("Timeline of the slots", "No machine has joined yet.")
    lead = "One row per slot. A blank stretch means that there was no machine."
    if any(len(one.spans) > MOST_RUNS for one in rows):
        lead += " Where many activities share a few pixels, heights show their shares."
    return section("Timeline of the slots", lead, f'{_legend()}<div class="scroll">{draw(view)}</div>{_table(view)}')


def draw(view: RunView) -> str:
    """The rows, reserved first, over one time axis."""
    rows = view.timeline.ordered()
    x = svg.Scale(0.0, max(view.at, 1e-9), LEFT, RIGHT)
    parts, y = [PATTERNS], 0.0
    for slot_class in SlotClass:
        members = [member for member in rows if member.slot_class is slot_class]
        if not members:
            continue
        parts.append(svg.text(0, y + 17, slot_class.value, "group"))
        y += HEADING
        for member in members:
            parts.append(_drawn_row(view, member, x, y))
            y += ROW + GAP
        y += 4
    behind = [_boundaries(view, x, HEADING, y - 8)]
    parts += [svg.line(x(at), HEADING - 4, x(at), y - 8, "restart") for at in view.timeline.restarts]
    parts.append(svg.x_axis(x, y - 4, svg.time_ticks(view.at), clock))
    parts.append(svg.text(RIGHT + 10, 17, "busy", "tick"))
    title = f"activity of {count(len(rows), 'slot')} over {duration(view.at)}"
    return svg.drawing(WIDTH, y + AXIS - 14, title, parts[0] + "".join(behind) + "".join(parts[1:]), "timeline")


def _drawn_row(view: RunView, slot: SlotRow, x: svg.Scale, y: float) -> str:
    parts = [svg.text(LEFT - 10, y + 14, slot.name, "slot", "end")]
    for life in slot.lives:
        start, end = x(life.start), x(view.at if life.end is None else life.end)
        parts.append(
            f'<rect x="{start:.1f}" y="{y:.0f}" width="{max(0.6, end - start):.1f}" height="{ROW}" class="track"/>'
        )
    runs = pixel_runs(slot, x)
    blocks = _whole(runs) if sum(map(len, runs.values())) <= MOST_RUNS else _stacked(pixel_shares(slot, x))
    for activity, boxes in blocks.items():
        path = "".join(f"M{left:g} {y + top:g}h{wide:g}v{high:g}h{-wide:g}z" for left, top, wide, high in boxes)
        parts.append(f'<path d="{path}" class="act-{activity.value}"/>')
    crowded = len(slot.losses) > MOST_TICKS
    parts += [] if crowded else [_notice(notice, x, y, view.at) for notice in slot.notices]
    parts += _short_ticks(slot, x, y) if crowded else [_tick(x(at), y, at, noticed) for at, noticed in slot.losses]
    shares = activity_shares(slot, view.at)
    parts.append(svg.text(RIGHT + 10, y + 14, percent(sum(shares.values())), "tick"))
    summary = ", ".join(f"{LABELS[activity]} {percent(share)}" for activity, share in shares.items())
    summary += f"; in a crew {percent(shared)}" if (shared := crew_share(slot, view.at)) else ""
    return f"<g><title>{safe(slot.name)}: {safe(summary or 'nothing yet')}</title>{''.join(parts)}</g>"


def _notice(notice: NoticeSpan, x: svg.Scale, y: float, now: float) -> str:
    until = now if notice.end is None else min(notice.end, now)
    start, end = x(notice.start), x(until)
    title = f"{notice.kind.value} notice at {clock(notice.start)}"
    title += f", withdrawn at {clock(until)}" if notice.withdrawn else ""
    hatched = (
        f'<rect x="{start:.1f}" y="{y:.0f}" width="{max(1.5, end - start):.1f}" height="{ROW}" class="notice">'
        f"<title>{title}</title></rect>"
    )
    return hatched + (svg.line(end, y, end, y + ROW, "withdrawn") if notice.withdrawn else "")


def _tick(x: float, y: float, at: float, noticed: bool) -> str:
    kind, how = ("lost-noticed", "after a notice") if noticed else ("lost", "without notice")
    head = f"M{x:.1f} {y + 1:g}l-4 -6h8z"
    return (
        f'<g class="{kind}"><title>lost at {clock(at)}, {how}</title>'
        f'{svg.line(x, y - 1, x, y + ROW + 1, "stem")}<path d="{head}"/></g>'
    )


def _short_ticks(slot: SlotRow, x: svg.Scale, y: float) -> list[str]:
    """Losses of a long run: marks above the row, one for every few pixels with a loss."""
    places = sorted({4 * round(x(at) / 4) for at, _ in slot.losses})
    return [svg.line(place, y - 4, place, y, "stem-short") for place in places]


def pixel_shares(slot: SlotRow, x: svg.Scale) -> dict[int, dict[Activity, float]]:
    """Share of each activity in every pixel."""
    shares: dict[int, dict[Activity, float]] = {}
    for span in slot.spans:
        # A worker's clock may be ahead of the journal's; the part beyond the axis is not drawn.
        start, end = (min(max(x(at), x.start), x.stop) for at in (span.start, span.end))
        for pixel in range(int(start), int(end) + 1):
            inside = min(end, pixel + 1) - max(start, pixel)
            if inside > 0:
                by_activity = shares.setdefault(pixel, {})
                by_activity[span.activity] = by_activity.get(span.activity, 0.0) + inside
    return shares


def pixel_runs(slot: SlotRow, x: svg.Scale) -> dict[Activity, list[tuple[int, int]]]:
    """Runs of pixels by their dominant activity: never more than the pixels of a row."""
    runs: dict[Activity, list[tuple[int, int]]] = {}
    for pixel, covered in sorted(pixel_shares(slot, x).items()):
        if sum(covered.values()) < 0.25:
            continue
        activity = max(Activity, key=lambda one: covered.get(one, 0.0))
        members = runs.setdefault(activity, [])
        if members and members[-1][1] == pixel:
            members[-1] = (members[-1][0], pixel + 1)
        else:
            members.append((pixel, pixel + 1))
    return runs


def _whole(runs: dict[Activity, list[tuple[int, int]]]) -> Blocks:
    """Blocks of full height."""
    return {one: [(start, 0.0, stop - start, ROW) for start, stop in members] for one, members in runs.items()}


def _stacked(shares: dict[int, dict[Activity, float]]) -> Blocks:
    """Blocks as high as their share, for long runs: there a pixel holds many spans, and the dominant one alternates."""
    bins: dict[int, dict[Activity, float]] = {}
    for pixel, covered in shares.items():
        summed = bins.setdefault(min(pixel, RIGHT - 1) - (min(pixel, RIGHT - 1) - LEFT) % BIN, {})
        for activity, share in covered.items():
            summed[activity] = summed.get(activity, 0.0) + share
    blocks: Blocks = {}
    for left, summed in sorted(bins.items()):
        bottom, wide = float(ROW), min(BIN, RIGHT - left)
        for activity in LABELS:
            high = round(ROW * min(1.0, summed.get(activity, 0.0) / wide), 2)
            bottom -= high
            if high > 0:
                blocks.setdefault(activity, []).append((left, round(max(0.0, bottom), 2), wide, high))
    return blocks


def activity_shares(slot: SlotRow, end: float) -> dict[Activity, float]:
    """Share of each activity in the time that a machine was present."""
    there = _seconds_there(slot, end)
    seconds: dict[Activity, float] = {}
    for span in slot.spans:
        seconds[span.activity] = seconds.get(span.activity, 0.0) + span.end - span.start
    return {one: min(1.0, seconds[one] / there) for one in LABELS if one in seconds} if there > 0 else {}


def crew_share(slot: SlotRow, end: float) -> float:
    """Share of crew membership in the time that a machine was present."""
    there = _seconds_there(slot, end)
    return min(1.0, slot.crewed_until(end) / there) if there > 0 else 0.0


def _seconds_there(slot: SlotRow, end: float) -> float:
    return sum((end if life.end is None else life.end) - life.start for life in slot.lives)


def _boundaries(view: RunView, x: svg.Scale, top: float, bottom: float) -> str:
    """Lines at the ends of iterations, unless there are too many."""
    if len(view.iterations) > MOST_BOUNDARIES:
        return ""
    return "".join(svg.line(x(done.at), top - 4, x(done.at), bottom, "boundary") for done in view.iterations)


def _legend() -> str:
    shown = [one for one in LABELS if one not in (Activity.START, Activity.IDLE, *METERED)]
    lost = '<g class="{}"><line x1="11" y1="2" x2="11" y2="14" class="stem"/><path d="M11 8l-5 -7h10z"/></g>'
    return legend(
        (
            *(swatch(box(f"act-{one.value}"), LABELS[one]) for one in shown),
            swatch(box("track"), "idle or starting"),
            swatch(box("track") + box("notice"), "under notice"),
            swatch('<line x1="11" y1="0" x2="11" y2="14" class="withdrawn"/>', "notice withdrawn"),
            swatch(lost.format("lost"), "lost without notice"),
            swatch(lost.format("lost-noticed"), "lost after notice"),
            swatch('<line x1="11" y1="0" x2="11" y2="14" class="boundary"/>', "iteration ends"),
        )
    )


def _table(view: RunView) -> str:
    """The chart as a table, for readers without colours or pictures."""
    shown = [one for one in LABELS if one not in (Activity.IDLE, *METERED)]
    body = ""
    for member in view.timeline.ordered():
        shares = activity_shares(member, view.at)
        unannounced = sum(not noticed for _, noticed in member.losses)
        counts = (member.slot_class.value, len(member.lives), len(member.losses), unannounced)
        body += row(member.name, *counts, *(percent(shares.get(one, 0.0)) for one in shown))
    heads = ("slot", "class", "machines", "losses", "unannounced", *(LABELS[one] for one in shown))
    return f"<details><summary>The same as a table</summary>{table(heads, body)}</details>"
