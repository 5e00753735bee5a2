"""The geometry of the crews over time: slots in crews, stacked by degree, over the slots present."""

import msgspec

from spotlight.surface.formats import clock
from spotlight.surface.html.chart_drawing import AxisTick
from spotlight.surface.html.scales import Scale, ticks, time_ticks
from spotlight.surface.panels.crew_panel import BINS, CrewPanel
from spotlight.surface.projections import RunView

WIDTH, HEIGHT = 1080, 260
LEFT, TOP, BOTTOM = 116, 14, 196
BIN = 4
"""Pixels per part of the time."""
SHADES = 4
"""Number of colours of degrees; larger crews share the last one."""


class CrewDrawing(msgspec.Struct, frozen=True, kw_only=True):
    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    columns: list[tuple[str, str]]
    """Class of the colour and path."""
    y_ticks: list[AxisTick]
    x_ticks: list[AxisTick]
    regroups: list[int]
    losses: list[int]


def drawn_crews(panel: CrewPanel, view: RunView) -> CrewDrawing:
    x = Scale(0.0, max(view.at, 1e-9), LEFT, LEFT + BIN * BINS)
    sums = [sum(one.slots[number] for one in panel.degrees) for number in range(BINS)]
    y = Scale(0.0, max(1.0, *panel.present, *sums), BOTTOM, TOP)
    columns = [("track", _columns([(0.0, slots) for slots in panel.present], y))]
    below = [0.0] * BINS
    for number, one in enumerate(panel.degrees):
        above = [base + slots for base, slots in zip(below, one.slots, strict=True)]
        columns.append((shade(number), _columns(list(zip(below, above, strict=True)), y)))
        below = above
    return CrewDrawing(
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=LEFT + BIN * BINS,
        top=TOP,
        bottom=BOTTOM,
        columns=columns,
        y_ticks=[AxisTick(y(tick), f"{tick:,.0f}") for tick in ticks(y.low, y.high, 4)],
        x_ticks=[AxisTick(x(tick), clock(tick)) for tick in time_ticks(view.at)],
        regroups=sorted({round(x(one.at)) for one in view.crews.regroups}),
        losses=sorted({round(x(one.at)) for one in view.timeline.preemptions}),
    )


def shade(number: int) -> str:
    """Class of a degree's colour, by its place among the degrees."""
    return f"degree-{min(SHADES, number + 1)}"


def _columns(spans: list[tuple[float, float]], y: Scale) -> str:
    """One column per part, from the lower to the upper number of slots."""
    return "".join(
        f"M{LEFT + BIN * number} {y(high):.1f}h{BIN}V{y(low):.1f}h-{BIN}z"
        for number, (low, high) in enumerate(spans)
        if high - low > 1e-6
    )
