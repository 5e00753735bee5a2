"""Slot time by activity: a stacked bar per class of slot, and a table that begins with idle time.

Invariant: the shares of a class add up to the time that its slots were held (tests/unit/test_report_bubbles.py).
"""

import math

import msgspec

from spotlight.control.market.bill import HOUR_S
from spotlight.control.market.bubbles import IterationBubbles, bubbles_of, share
from spotlight.control.market.occupancy import Tenure
from spotlight.core.work import Activity
from spotlight.surface.activity_names import LABELS
from spotlight.surface.projections import RunView

NAMES = {
    Tenure.RESERVED: "reserved, to train",
    Tenure.SPOT: "spot",
    Tenure.ON_DEMAND: "on demand, to roll out",
}
MOST_ROWS = 30
"""Largest number of iterations in the table; longer runs show the last."""


class TenureTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time of the slots of one class."""

    tenure: Tenure
    name: str
    hours: float
    seconds: dict[Activity, float]
    shares: dict[Activity, float]
    """In the order of legends; without activities that never happened."""


class IterationIdle(msgspec.Struct, frozen=True, kw_only=True):
    """Idle share of one iteration, by class; None where no slot was held."""

    iteration: int
    seconds: float
    idle: list[float | None]


class SlotTimePanel(msgspec.Struct, frozen=True, kw_only=True):
    tenures: list[TenureTime]
    activities: list[Activity]
    """Those that happened."""
    iterations: list[IterationIdle]
    """The last finished ones."""
    finished: int


def slot_time_panel(view: RunView) -> SlotTimePanel:
    # One more: the current iteration is not finished.
    found = bubbles_of(view.meter, newest=MOST_ROWS + 1)
    tenures = [
        TenureTime(
            tenure=tenure,
            name=NAMES[tenure],
            hours=math.fsum(seconds.values()) / HOUR_S,
            seconds=seconds,
            shares={kind: share(seconds, kind) for kind in LABELS if seconds.get(kind)},
        )
        for tenure, seconds in found.seconds.items()
    ]
    done = [one for one in found.iterations if one.end is not None]
    return SlotTimePanel(
        tenures=tenures,
        activities=[kind for kind in LABELS if any(kind in one.seconds for one in tenures)],
        iterations=[_idle(one, [each.tenure for each in tenures]) for one in done[-MOST_ROWS:]],
        finished=len(view.meter.ends),
    )


def _idle(one: IterationBubbles, tenures: list[Tenure]) -> IterationIdle:
    return IterationIdle(
        iteration=one.iteration,
        seconds=(one.end or one.start) - one.start,
        idle=[share(one.seconds[tenure], Activity.IDLE) if tenure in one.seconds else None for tenure in tenures],
    )
