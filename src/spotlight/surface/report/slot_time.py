"""Slot time by activity: a stacked bar per class of slot, and a table that begins with idle time.

Invariant: the shares of a class add up to the time that its slots were held (tests/unit/test_report_bubbles.py).
"""

import math
from collections.abc import Mapping

from spotlight.control.market.bill import HOUR_S
from spotlight.control.market.bubbles import Bubbles, bubbles_of, share
from spotlight.control.market.occupancy import Tenure
from spotlight.core.work import Activity
from spotlight.surface.projections import RunView
from spotlight.surface.report.formats import UNKNOWN, duration, percent, safe
from spotlight.surface.report.markup import box, figure, legend, row, section, swatch, table
from spotlight.surface.report.timeline_chart import LABELS

NAMES = {
    Tenure.RESERVED: "reserved, to train",
    Tenure.SPOT: "spot",
    Tenure.ON_DEMAND: "on demand, to roll out",
}
MOST_ROWS = 30
"""Largest number of iterations in the table; longer runs show the last."""
ROOM_FOR_WORDS = 0.11
"""Share above which a block of a bar is wide enough for its label."""


def bubbles_section(view: RunView) -> str:
    found = bubbles_of(view.meter)
    if not found.seconds:
        return ""
    lead = (
        "Every second that a slot was held has one activity. Idle: the worker is present and has no work. Help: a slot "
        "of the trainer rolls out while training is not finished."
    )
    bars = "".join(figure(NAMES[tenure], _bar(seconds), "share") for tenure, seconds in found.seconds.items())
    named = legend(swatch(box(f"act-{kind.value}"), LABELS[kind]) for kind in _present(found))
    numbers = f'<div class="numbers">{_kinds(found)}</div>{_iterations(found)}'
    return section("Where slot time went", lead, f"{named}{bars}{numbers}")


def _bar(seconds: Mapping[Activity, float]) -> str:
    """A stacked bar of HTML blocks, so that its labels keep their size on a narrow screen."""
    parts = []
    for kind, label in LABELS.items():
        part = share(seconds, kind)
        if part > 0:
            caption = f"{label} {percent(part)}"
            shown = safe(caption) if part > ROOM_FOR_WORDS else ""
            parts.append(
                f'<div class="block bg-{kind.value}" style="flex:{part:.5f}" title="{safe(caption)}, '
                f'{duration(seconds[kind])}"><span>{shown}</span></div>'
            )
    return f'<div class="bar">{"".join(parts)}</div>'


def _present(found: Bubbles) -> list[Activity]:
    return [kind for kind in LABELS if any(kind in seconds for seconds in found.seconds.values())]


def _kinds(found: Bubbles) -> str:
    """One row per kind, idle first."""
    held = {tenure: math.fsum(seconds.values()) / HOUR_S for tenure, seconds in found.seconds.items()}
    kinds = [Activity.IDLE, *(kind for kind in _present(found) if kind is not Activity.IDLE)]
    rows = "".join(
        row(LABELS[kind], *(percent(share(seconds, kind)) for seconds in found.seconds.values())) for kind in kinds
    )
    rows += row("GPU-hours held", *(f"{hours:,.3f}" for hours in held.values()))
    return table(("share of the time held", *(NAMES[tenure] for tenure in found.seconds)), rows)


def _iterations(found: Bubbles) -> str:
    """Idle share in each finished iteration."""
    done = [one for one in found.iterations if one.end is not None]
    if len(done) < 2:
        return ""
    rows = "".join(
        row(
            one.iteration,
            duration((one.end or one.start) - one.start),
            *(
                percent(share(one.seconds[tenure], Activity.IDLE)) if tenure in one.seconds else UNKNOWN
                for tenure in found.seconds
            ),
        )
        for one in done[-MOST_ROWS:]
    )
    heads = ("iteration", "took", *(f"{NAMES[tenure]}: idle" for tenure in found.seconds))
    which = "Idle in each iteration" if len(done) <= MOST_ROWS else f"Idle in each of the last {MOST_ROWS} iterations"
    return f'<details class="numbers"><summary>{which}</summary>{table(heads, rows)}</details>'
