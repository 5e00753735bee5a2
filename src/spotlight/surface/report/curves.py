"""Held-out scores over the iterations, each with its 95 % interval."""

from collections.abc import Sequence

from spotlight.compute.rewards.protocol import JUDGE
from spotlight.surface.projections import RunView, ScoreInterval
from spotlight.surface.report import svg
from spotlight.surface.report.formats import score, score_name
from spotlight.surface.report.markup import empty, figure, section

WIDTH, HEIGHT = 560, 280
LEFT, RIGHT, TOP, BOTTOM = 46, 540, 18, 236
MOST_DOTS = 80
SHOWN = 4


def score_section(view: RunView, trained_on: int = 0) -> str:
    """The headline, the reward, the second judge, then the others; equal curves are shown once."""
    headline = view.headline()
    if headline is None:
        if view.facts.stopped is not None:
            return empty("Held-out score", "No evaluation: the run stopped before its first one was done.")
        return empty("Held-out score", "No evaluation yet: the first one appears here when it is done.")
    names = {name for evaluation in view.evaluations for name in evaluation.scores}
    ordered = sorted(names, key=lambda name: (name != headline, name != "reward", name != JUDGE, name))
    curves: dict[str, list[tuple[int, ScoreInterval]]] = {}
    for name in ordered:
        curve = view.curve(name)
        if curve not in curves.values():
            curves[name] = curve
    figures = "".join(curve_figure(name, curve) for name, curve in list(curves.items())[:SHOWN])
    kept_apart = (
        f"Fixed prompts and seeds; {trained_on:,} of the prompts are also trained on."
        if trained_on
        else "Fixed prompts and seeds that are never trained on."
    )
    return section(
        "Held-out score", f"{kept_apart} The band is the 95 % interval.", f'<div class="charts">{figures}</div>'
    )


def curve_figure(name: str, curve: Sequence[tuple[int, ScoreInterval]]) -> str:
    first, last = curve[0][1], curve[-1][1]
    caption = f"{score_name(name)}: {score(first.value)} → {score(last.value)}"
    return figure(caption[:1].upper() + caption[1:], _drawing(name, curve))


def _drawing(name: str, curve: Sequence[tuple[int, ScoreInterval]]) -> str:
    low = min(point.low for _, point in curve)
    high = max(point.high for _, point in curve)
    room = max(0.04, 0.12 * (high - low))
    y = svg.Scale(
        max(0.0, low - room) if low >= 0 else low - room,
        min(1.0, high + room) if high <= 1 else high + room,
        BOTTOM,
        TOP,
    )
    x = svg.Scale(curve[0][0], max(curve[-1][0], curve[0][0] + 1), LEFT + 8, RIGHT - 8)
    points = [(x(iteration), y(point.value)) for iteration, point in curve]
    lower = [(x(iteration), y(point.low)) for iteration, point in curve]
    upper = [(x(iteration), y(point.high)) for iteration, point in curve]
    dots = "".join(
        f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="3.5" class="dot"><title>after iteration {iteration}: '
        f"{score(point.value)} ({score(point.low)} to {score(point.high)})</title></circle>"
        for (cx, cy), (iteration, point) in zip(points, curve, strict=True)
    )
    values = [tick for tick in svg.ticks(x.low, x.high, 6) if tick == int(tick)]
    first, last = points[0], points[-1]
    body = (
        svg.y_axis(y, LEFT, RIGHT, score)
        + svg.x_axis(x, BOTTOM, values, lambda tick: f"{tick:.0f}")
        + svg.text((LEFT + RIGHT) / 2, HEIGHT - 6, "iterations trained", "axis", "middle")
        + svg.line(LEFT, first[1], RIGHT, first[1], "baseline")
        + (svg.band(lower, upper, "band") if len(curve) > 1 else "")
        + (
            svg.polyline(points, "curve")
            if len(curve) > 1
            else svg.line(first[0], lower[0][1], first[0], upper[0][1], "curve")
        )
        + (dots if len(curve) <= MOST_DOTS else "")
        + svg.text(min(last[0], RIGHT - 4), upper[-1][1] - 9, score(curve[-1][1].value), "value", "end")
    )
    return svg.drawing(WIDTH, HEIGHT, f"{score_name(name)} by iteration", body)


def gain_sentence(name: str, curve: Sequence[tuple[int, ScoreInterval]]) -> str:
    """A sentence such as `exact match rose from 0.40 to 0.61`, or that the change is within the error."""
    first, last = curve[0][1], curve[-1][1]
    what = f"held-out {score_name(name)}"
    if len(curve) == 1:
        return f"{what} is {score(first.value)} so far"
    change = f"from {score(first.value)} to {score(last.value)}"
    if not last.differs_from(first):
        return f"{what} went {change}, a change within the error"
    return f"{what} {'rose' if last.value > first.value else 'fell'} {change}"


def interval(point: ScoreInterval) -> str:
    return f"{score(point.low)} to {score(point.high)}"
