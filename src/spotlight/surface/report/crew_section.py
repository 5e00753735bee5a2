"""Crews over time: slots that share samples, by degree, beside the slots present; regroups as marks and as a table."""

from statistics import median

from spotlight.surface.crew_rows import Regrouped
from spotlight.surface.projections import RunView
from spotlight.surface.report import svg
from spotlight.surface.report.formats import clock, count, duration, percent
from spotlight.surface.report.markup import box, legend, row, section, swatch, table

WIDTH, HEIGHT = 1080, 260
LEFT, RIGHT, TOP, BOTTOM = 116, 1008, 14, 196
BIN = 4
"""Pixels per bin of time."""
MARKS, MARK = BOTTOM + 6, 9
"""Top and height of the regroups' marks."""
SHADES = 4
"""Number of colours of degrees; larger crews share the last one."""
MOST_ROWS = 24
"""Largest number of regroups in the table; longer runs show the last."""


def crew_section(view: RunView) -> str:
    """Nothing if no crew was ever formed."""
    regroups = view.crews.regroups
    if not regroups:
        return ""
    took = sorted(one.seconds for one in regroups)
    formed = view.crews.formed
    lead = (
        "The slots of a node that share each sample form a crew. "
        f"{count(sum(formed.values()), 'crew')} of up to {max(formed)} slots formed in "
        f"{count(len(regroups), 'regroup')}, which took {_seconds(median(took))} in the median and "
        f"{_seconds(took[-1])} at most, the wait for the members' step boundaries included."
    )
    return section("Crews", lead, f'{_legend(view)}<div class="scroll">{draw(view)}</div>{_tables(view)}')


def draw(view: RunView) -> str:
    """Slots in crews, stacked by degree, over the slots present."""
    end, bins = max(view.at, 1e-9), (RIGHT - LEFT) // BIN
    means, present = view.crews.slots_over(end, bins), slots_present(view, end, bins)
    x = svg.Scale(0.0, end, LEFT, RIGHT)
    y = svg.Scale(0.0, max(1.0, *present, *(sum(by_degree.values()) for by_degree in means)), BOTTOM, TOP)
    parts = [_columns([(0.0, slots) for slots in present], y, "track")]
    parts += [svg.y_axis(y, LEFT, RIGHT, lambda tick: f"{tick:,.0f}", wanted=4)]
    below = [0.0] * bins
    for degree in degrees_of(view):
        above = [base + by_degree.get(degree, 0.0) for base, by_degree in zip(below, means, strict=True)]
        parts.append(_columns(list(zip(below, above, strict=True)), y, shade(view, degree)))
        below = above
    places = sorted({round(x(one.at)) for one in view.crews.regroups})
    parts += [svg.line(place, MARKS, place, MARKS + MARK, "regroup") for place in places]
    taken = sorted({round(x(one.at)) for one in view.timeline.preemptions})
    parts += [svg.line(place, TOP, place, BOTTOM, "stem-short") for place in taken]
    parts += [
        svg.text(LEFT - 8, MARKS + MARK, "regroups", "tick", "end"),
        svg.text(0, TOP + 4, "slots", "group"),
        svg.x_axis(x, MARKS + MARK + 4, svg.time_ticks(view.at), clock),
    ]
    title = f"slots in crews over {duration(view.at)}"
    return svg.drawing(WIDTH, HEIGHT, title, "".join(parts), "timeline")


def degrees_of(view: RunView) -> list[int]:
    return sorted(view.crews.formed)


def shade(view: RunView, degree: int) -> str:
    """Class of a degree's colour."""
    return f"degree-{min(SHADES, degrees_of(view).index(degree) + 1)}"


def slots_present(view: RunView, end: float, bins: int) -> list[float]:
    """Mean number of slots with a worker, in equal parts of the time until `end`."""
    means, width = [0.0] * bins, end / bins
    for slot in view.timeline.rows.values():
        for life in slot.lives:
            stop = end if life.end is None else life.end
            for number in range(int(life.start / width), min(bins, int(stop / width) + 1)):
                inside = min(stop, (number + 1) * width) - max(life.start, number * width)
                means[number] += max(0.0, inside) / width
    return means


def _columns(spans: list[tuple[float, float]], y: svg.Scale, css: str) -> str:
    """One column per bin, from the lower to the upper number of slots."""
    path = ""
    for number, (low, high) in enumerate(spans):
        if high - low > 1e-6:
            top = y(high)
            path += f"M{LEFT + BIN * number} {top:.1f}h{BIN}V{y(low):.1f}h-{BIN}z"
    return f'<path d="{path}" class="{css}"/>'


def _legend(view: RunView) -> str:
    degrees = [swatch(box(shade(view, degree)), f"in crews of {degree}") for degree in degrees_of(view)]
    return legend(
        (
            *degrees,
            swatch(box("track"), "present, alone"),
            swatch('<line x1="11" y1="1" x2="11" y2="13" class="regroup"/>', "regroup"),
            swatch('<line x1="11" y1="0" x2="11" y2="14" class="stem-short"/>', "spot slots lost"),
        )
    )


def _tables(view: RunView) -> str:
    end = max(view.at, 1e-9)
    (held,) = slots_present(view, end, 1)
    (means,) = view.crews.slots_over(end, 1)
    shares = "".join(
        row(degree, count(formed), f"{means[degree] * end / 3600:,.2f}", percent(means[degree] / held))
        for degree, formed in sorted(view.crews.formed.items())
        if held and degree in means
    )
    by_degree = table(("slots per crew", "crews formed", "slot-hours", "share of the time held"), shares)
    shown = view.crews.regroups[-MOST_ROWS:]
    known = len(view.crews.regroups)
    note = f"the last {len(shown)} of {known:,}" if known > len(shown) else f"all {known}"
    listed = table(("time", "node", "crews", "took", "reason"), "".join(map(_regroup_row, shown)))
    return f'<div class="numbers">{by_degree}</div><details><summary>Regroups: {note}</summary>{listed}</details>'


def _regroup_row(one: Regrouped) -> str:
    return row(clock(one.at), one.node, " + ".join(map(str, one.degrees)), _seconds(one.seconds), one.reason)


def _seconds(seconds: float) -> str:
    """Milliseconds where they matter."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else duration(seconds)
