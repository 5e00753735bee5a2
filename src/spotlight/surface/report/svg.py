"""Small SVG pieces: scales with round ticks, axes, lines with an interval. Colours are classes of the style sheet."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spotlight.surface.report.formats import safe


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low .. high` onto pixels `start .. stop`."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.stop - self.start)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers within the range, about `wanted` of them."""
    span = high - low
    if span <= 0:
        return [low]
    rough = span / wanted
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def time_ticks(high: float, wanted: int = 8) -> list[float]:
    """Whole seconds, minutes or hours from 0."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)
    step = next((step for step in steps if high / step <= wanted), 86400 * max(1, round(high / 86400 / wanted)))
    return [float(number * step) for number in range(int(high / step) + 1)]


def text(x: float, y: float, words: str, css: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}">{safe(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"/>'


def y_axis(scale: Scale, left: float, right: float, label: Callable[[float], str], wanted: int = 5) -> str:
    """Horizontal hairlines with their values on the left."""
    parts = []
    for tick in ticks(scale.low, scale.high, wanted):
        y = scale(tick)
        parts += [line(left, y, right, y, "grid"), text(left - 8, y + 4, label(tick), "tick", "end")]
    return "".join(parts)


def x_axis(scale: Scale, bottom: float, values: Sequence[float], label: Callable[[float], str]) -> str:
    return "".join(text(scale(value), bottom + 18, label(value), "tick", "middle") for value in values)


def polyline(points: Sequence[tuple[float, float]], css: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" class="{css}"/>'


def band(lower: Sequence[tuple[float, float]], upper: Sequence[tuple[float, float]], css: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (*upper, *reversed(lower)))
    return f'<polygon points="{path}" class="{css}"/>'


def drawing(width: float, height: float, title: str, body: str, css: str = "") -> str:
    """A whole picture, with its title as a text alternative."""
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{safe(title)}" class="{css}">{body}</svg>'
