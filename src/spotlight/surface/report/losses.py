"""Loss, gradient norm and KL over the optimizer steps."""

from collections.abc import Sequence
from math import fsum

from spotlight.surface.projections import RunView
from spotlight.surface.report import svg
from spotlight.surface.report.markup import figure, section
from spotlight.surface.training_figures import SHOWN

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 52, 354, 14, 166
MOST_POINTS = 240
"""Largest number of points of a curve; in longer runs each is a mean over neighbouring steps."""
CAPTIONS = {"loss": "Loss", "grad_norm": "Gradient norm", "kl": "KL to the base model"}


def learning_section(view: RunView) -> str:
    """Empty if no step has figures, as in simulations with drawn rewards."""
    curves = {name: view.training.curve(name) for name in SHOWN}
    charts = "".join(_chart(name, curve) for name, curve in curves.items() if curve)
    if not charts:
        return ""
    lead = "By optimizer step. Loss and KL are means over the rows of a step; the gradient norm is before clipping."
    return section("Training", lead, f'<div class="charts small">{charts}</div>')


def _chart(name: str, curve: Sequence[tuple[int, float]]) -> str:
    caption = f"{CAPTIONS[name]}: {curve[0][1]:.3g} → {curve[-1][1]:.3g}"
    return figure(caption, _drawing(CAPTIONS[name], binned(curve, MOST_POINTS)))


def _drawing(title: str, curve: Sequence[tuple[float, float]]) -> str:
    values = [value for _, value in curve]
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    y = svg.Scale(low - room if low < 0 else max(0.0, low - room), high + room, BOTTOM, TOP)
    x = svg.Scale(curve[0][0], max(curve[-1][0], curve[0][0] + 1), LEFT + 8, RIGHT - 8)
    points = [(x(step), y(value)) for step, value in curve]
    ticks = [tick for tick in svg.ticks(x.low, x.high, 5) if tick == int(tick)]
    body = (
        svg.y_axis(y, LEFT, RIGHT, lambda tick: f"{tick:.3g}", 4)
        + svg.x_axis(x, BOTTOM, ticks, lambda tick: f"{tick:.0f}")
        + svg.text((LEFT + RIGHT) / 2, HEIGHT - 6, "optimizer steps", "axis", "middle")
        + svg.polyline(points if len(points) > 1 else [*points, *points], "curve")
    )
    return svg.drawing(WIDTH, HEIGHT, f"{title} by optimizer step", body)


def binned(curve: Sequence[tuple[int, float]], most: int) -> list[tuple[float, float]]:
    """At most `most` points, each the mean of the same number of neighbours; the last bin may have fewer."""
    width = -(-len(curve) // most)
    bins = [curve[start : start + width] for start in range(0, len(curve), width)]
    return [(fsum(step for step, _ in each) / len(each), fsum(value for _, value in each) / len(each)) for each in bins]
