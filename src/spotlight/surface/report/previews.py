"""Previews per iteration, and the share of the reward's variance that the selected seeds captured."""

import math
from collections.abc import Sequence

from spotlight.surface.projections import ExplorationView, RunView
from spotlight.surface.report import svg
from spotlight.surface.report.formats import count, percent, score
from spotlight.surface.report.markup import box, empty, figure, legend, section, stroke, swatch

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 540, 18, 206
MOST_BARS = 120
LINES = (("captured_variance", "captured variance, at most", "curve"), ("spearman", "rank correlation", "curve-2"))


def preview_section(view: RunView) -> str:
    closed = [view.explorations[key] for key in sorted(view.explorations)]
    seen = [one for one in closed if one.planned or one.previewed or one.figures]
    if not seen:
        return empty("Previews", "No seed has been previewed: no slot was idle yet, or exploration is off.")
    finished, discarded = sum(map(done_of, seen)), sum(one.discarded for one in seen)
    lead = (
        f"{count(finished, 'preview')} on weights at most one iteration old selected the seeds to roll out; "
        f"{count(discarded)} were cut off when training ended. Previews are never trained on. "
        "Captured variance is estimated from a few audited seeds and errs on the high side."
    )
    charts = figure("Previews by iteration", _bars(seen)) + figure("Fidelity of previews", _lines(seen))
    return section("Previews", lead, f'<div class="charts">{charts}</div>')


def done_of(one: ExplorationView) -> int:
    """Number of finished previews; of an open exploration, those recorded so far."""
    return max(one.finished, one.previewed)


def mean_figure(view: RunView, name: str) -> float | None:
    values = [one.figures[name] for one in view.explorations.values() if math.isfinite(one.figures.get(name, math.nan))]
    return math.fsum(values) / len(values) if values else None


def _bars(seen: Sequence[ExplorationView]) -> str:
    shown = _binned(seen)
    most = max(max(planned, done + discarded) for _, planned, done, discarded in shown) or 1
    y = svg.Scale(0, most * 1.08, BOTTOM, TOP)
    x = svg.Scale(0, len(shown), LEFT + 4, RIGHT)
    width = min(34.0, (x(1) - x(0)) * (0.72 if len(shown) <= 40 else 0.92))
    parts = [svg.y_axis(y, LEFT, RIGHT, lambda tick: f"{tick:,.0f}")]
    every = max(1, round(len(shown) / 10))
    for index, (label, planned, done, discarded) in enumerate(shown):
        left = (x(index) + x(index + 1)) / 2 - width / 2
        top, over = y(done), y(done + discarded)
        parts.append(
            f"<g><title>for iteration {label}: {done:,.0f} finished, {discarded:,.0f} cut off, {planned:,.0f} planned"
            "</title>"
            f'<rect x="{left:.1f}" y="{over:.1f}" width="{width:.1f}" height="{top - over:.1f}" class="cut"/>'
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BOTTOM - top:.1f}" class="fill-preview"/>'
            f"{svg.line(left - 2, y(planned), left + width + 2, y(planned), 'plan')}</g>"
        )
        if index % every == 0:
            parts.append(svg.text(left + width / 2, BOTTOM + 18, str(label), "tick", "middle"))
    parts.append(svg.text((LEFT + RIGHT) / 2, HEIGHT - 4, "for iteration", "axis", "middle"))
    keys = (
        swatch(box("fill-preview"), "finished"),
        swatch(box("cut"), "cut off"),
        swatch(stroke("plan"), "planned"),
    )
    return svg.drawing(WIDTH, HEIGHT, "previews by iteration", "".join(parts)) + legend(keys)


def _binned(seen: Sequence[ExplorationView]) -> list[tuple[int, float, float, float]]:
    """(first iteration, planned, finished, cut off), means over bins when there are more iterations than bars."""
    size = -(-len(seen) // MOST_BARS)
    bins = [seen[start : start + size] for start in range(0, len(seen), size)]
    return [
        (
            members[0].iteration,
            sum(one.planned for one in members) / len(members),
            sum(map(done_of, members)) / len(members),
            sum(one.discarded for one in members) / len(members),
        )
        for members in bins
    ]


def _lines(seen: Sequence[ExplorationView]) -> str:
    x = svg.Scale(seen[0].iteration, max(seen[-1].iteration, seen[0].iteration + 1), LEFT + 8, RIGHT - 8)
    y = svg.Scale(0.0, 1.0, BOTTOM, TOP)
    parts = [svg.y_axis(y, LEFT, RIGHT, lambda tick: percent(tick))]
    keys = []
    for name, label, css in LINES:
        points = [(one.iteration, one.figures.get(name, math.nan)) for one in seen]
        shown = [(x(iteration), y(min(1.0, max(0.0, value)))) for iteration, value in points if math.isfinite(value)]
        if not shown:
            continue
        parts.append(svg.polyline(shown, css))
        if len(shown) <= 60:
            parts += [f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="3" class="dot-{css}"/>' for cx, cy in shown]
        mean = math.fsum(value for _, value in points if math.isfinite(value)) / len(shown)
        keys.append(swatch(stroke(css), f"{label}, mean {score(mean)}"))
    if not keys:
        return '<p class="empty">Not measured yet: the audit needs rollouts of previewed seeds.</p>'
    values = [tick for tick in svg.ticks(x.low, x.high, 6) if tick == int(tick)]
    parts.append(svg.x_axis(x, BOTTOM, values, lambda tick: f"{tick:.0f}"))
    parts.append(svg.text((LEFT + RIGHT) / 2, HEIGHT - 4, "for iteration", "axis", "middle"))
    drawn = svg.drawing(WIDTH, HEIGHT, "fidelity of previews by iteration", "".join(parts))
    return drawn + legend(keys)
