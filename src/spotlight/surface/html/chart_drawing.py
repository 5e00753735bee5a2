"""The geometry of a chart as SVG: `templates/chart.svg` writes it."""

from collections.abc import Iterable, Sequence

import msgspec

from spotlight.surface.formats import count, percent, score
from spotlight.surface.html.scales import Scale, ticks
from spotlight.surface.panels.chart import Chart, ChartKind, ChartLine, ChartUnit

MOST_DOTS = 80
LEAST_ROOM = 0.04
"""Smallest margin above and below the values of a score."""


class AxisTick(msgspec.Struct, frozen=True):
    place: float
    label: str


class DrawnDot(msgspec.Struct, frozen=True):
    x: float
    y: float
    title: str


class DrawnLine(msgspec.Struct, frozen=True, kw_only=True):
    css: int
    """Number of the line's colour, from 1."""
    points: str
    band: str
    """Outline of the interval; empty without one."""
    dots: list[DrawnDot]


class DrawnBar(msgspec.Struct, frozen=True, kw_only=True):
    left: float
    width: float
    blocks: list[tuple[int, float, float]]
    """Number of the colour, top and height of each block."""
    level: float
    title: str


class ChartDrawing(msgspec.Struct, frozen=True, kw_only=True):
    width: int
    height: int
    left: int
    right: int
    bottom: int
    x_ticks: list[AxisTick]
    y_ticks: list[AxisTick]
    lines: list[DrawnLine]
    bars: list[DrawnBar]
    baseline: float | None
    last: DrawnDot | None
    """Place and text of the last value."""


class Frame(msgspec.Struct, frozen=True):
    """Width and height of a drawing, and the edges of its plot."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int


WIDE = Frame(560, 280, 46, 540, 18, 236)
SMALL = Frame(360, 210, 52, 354, 14, 166)


def drawn_chart(chart: Chart, is_small: bool = False) -> ChartDrawing:
    frame = SMALL if is_small else WIDE
    return _bars(chart, frame) if chart.kind is ChartKind.BARS else _lines(chart, frame)


def shown(value: float | None, unit: ChartUnit) -> str:
    """A value as text."""
    if value is None:
        return "–"
    match unit:
        case ChartUnit.SCORE:
            return score(value)
        case ChartUnit.SHARE:
            return percent(value)
        case ChartUnit.COUNT:
            return count(value)
        case ChartUnit.NUMBER:
            return f"{value:.3g}"


def _lines(chart: Chart, frame: Frame) -> ChartDrawing:
    y = _value_scale(chart, frame)
    single = 1.0 if len(chart.x) == 1 else 0.0
    x = Scale(chart.x[0] - single, chart.x[-1] + single, frame.left + 8, frame.right - 8)
    main = chart.lines[0]
    last = _last_point(chart.x, main)
    with_interval = main.low is not None
    return ChartDrawing(
        width=frame.width,
        height=frame.height,
        left=frame.left,
        right=frame.right,
        bottom=frame.bottom,
        x_ticks=[
            AxisTick(x(tick), f"{tick:.0f}")
            for tick in (chart.x if single else ticks(x.low, x.high, 6))
            if tick == int(tick)
        ],
        y_ticks=[AxisTick(y(tick), shown(tick, chart.unit)) for tick in ticks(y.low, y.high)],
        lines=[_line(chart, number, x, y) for number in range(len(chart.lines))],
        bars=[],
        baseline=y(main.values[0]) if with_interval and main.values[0] is not None else None,
        last=DrawnDot(min(x(last[0]), frame.right - 4), y(last[2]) - 9, shown(last[1], chart.unit))
        if with_interval and last
        else None,
    )


def _line(chart: Chart, number: int, x: Scale, y: Scale) -> DrawnLine:
    line = chart.lines[number]
    known = [(at, index) for index, at in enumerate(chart.x) if line.values[index] is not None]
    points = [(x(at), y(line.values[index] or 0.0)) for at, index in known]
    band = ""
    if line.low is not None and line.high is not None and len(points) > 1:
        upper = [(x(at), y(line.high[index] or 0.0)) for at, index in known]
        lower = [(x(at), y(line.low[index] or 0.0)) for at, index in known]
        band = path_of((*upper, *reversed(lower)))
    dots = [DrawnDot(cx, cy, _title(chart, line, index)) for (cx, cy), (_, index) in zip(points, known, strict=True)]
    if len(points) == 1 and line.low is not None and line.high is not None:
        # One evaluation: its interval is an upright line.
        (place, _), index = points[0], known[0][1]
        points = [(place, y(line.low[index] or 0.0)), (place, y(line.high[index] or 0.0))]
    return DrawnLine(css=1 + number % 6, points=path_of(points), band=band, dots=dots if len(dots) <= MOST_DOTS else [])


def _title(chart: Chart, line: ChartLine, index: int) -> str:
    value, unit = shown(line.values[index], chart.unit), chart.unit
    bounds = (
        f" ({shown(line.low[index], unit)} to {shown(line.high[index], unit)})"
        if line.low is not None and line.high is not None
        else ""
    )
    return f"{chart.x_label} {chart.x[index]:g}, {line.label}: {value}{bounds}"


def _value_scale(chart: Chart, frame: Frame) -> Scale:
    if chart.unit is ChartUnit.SHARE:
        return Scale(0.0, 1.0, frame.bottom, frame.top)
    values = [
        value
        for line in chart.lines
        for part in (line.values, line.low or [], line.high or [])
        for value in part
        if value is not None
    ] or [0.0]
    low, high = min(values), max(values)
    if chart.unit is ChartUnit.SCORE:
        room = max(LEAST_ROOM, 0.12 * (high - low))
        top = min(1.0, high + room) if high <= 1 else high + room
    else:
        room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
        top = high + room
    return Scale(max(0.0, low - room) if low >= 0 else low - room, top, frame.bottom, frame.top)


def _last_point(x: Sequence[float], line: ChartLine) -> tuple[float, float, float] | None:
    """Place, value and upper bound of the last point that has a value."""
    for index in range(len(x) - 1, -1, -1):
        value = line.values[index]
        if value is not None:
            high = line.high[index] if line.high is not None else value
            return x[index], value, value if high is None else high
    return None


def _bars(chart: Chart, frame: Frame) -> ChartDrawing:
    *stacked, level = chart.lines
    sums = [sum(line.values[index] or 0.0 for line in stacked) for index in range(len(chart.x))]
    most = max(*sums, *(value or 0.0 for value in level.values), 1.0)
    y = Scale(0.0, most * 1.08, frame.bottom, frame.top)
    x = Scale(0.0, len(chart.x), frame.left + 4, frame.right)
    width = min(34.0, (x(1) - x(0)) * (0.72 if len(chart.x) <= 40 else 0.92))
    every = max(1, round(len(chart.x) / 10))
    bars, places = [], []
    for index, at in enumerate(chart.x):
        left = (x(index) + x(index + 1)) / 2 - width / 2
        blocks, below = [], 0.0
        for number, line in enumerate(stacked, start=1):
            value = line.values[index] or 0.0
            blocks.append((number, y(below + value), y(below) - y(below + value)))
            below += value
        values = ", ".join(f"{shown(line.values[index], chart.unit)} {line.label}" for line in chart.lines)
        title = f"{chart.x_label} {at:g}: {values}"
        bars.append(DrawnBar(left=left, width=width, blocks=blocks, level=y(level.values[index] or 0.0), title=title))
        if index % every == 0:
            places.append(AxisTick(left + width / 2, f"{at:.0f}"))
    return ChartDrawing(
        width=frame.width,
        height=frame.height,
        left=frame.left,
        right=frame.right,
        bottom=frame.bottom,
        x_ticks=places,
        y_ticks=[AxisTick(y(tick), shown(tick, chart.unit)) for tick in ticks(y.low, y.high)],
        lines=[],
        bars=bars,
        baseline=None,
        last=None,
    )


def path_of(points: Iterable[tuple[float, float]]) -> str:
    """Points as an attribute of a polyline or polygon."""
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
