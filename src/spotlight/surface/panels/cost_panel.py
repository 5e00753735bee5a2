"""Cost at list prices: the meter, the alternatives for the same work, cost by activity."""

import math

import msgspec

from spotlight.control.market.bill import HOUR_S, BillLine
from spotlight.control.market.prices import PriceTable
from spotlight.core.work import Activity, SlotClass
from spotlight.surface.activity_names import LABELS
from spotlight.surface.projections import RunView

UNPRODUCTIVE = (Activity.IDLE, Activity.START, Activity.SWITCH, Activity.REGROUP, Activity.LOST)


class CostLine(msgspec.Struct, frozen=True, kw_only=True):
    """All slots of one class and price."""

    slots: str
    """reserved, spot or stand-in."""
    machine: str
    per_gpu_hour: float | None
    gpu_hours: float
    busy: float
    """Share of the paid seconds that is neither waiting nor lost work."""
    dollars: float | None


class ActivityCost(msgspec.Struct, frozen=True, kw_only=True):
    activity: Activity
    gpu_hours: float
    cents: int
    """The cents of all activities add up to the rounded dollars."""


class CostPanel(msgspec.Struct, frozen=True, kw_only=True):
    """Priced as if every slot were a GPU of the table."""

    priced_as_if: str
    date: str
    digest: str
    sources: list[str]
    dollars: float
    dollars_per_hour: float
    """Of the slots that are held now; 0 once the run is over."""
    dollars_per_sample: float | None
    """Of trained samples."""
    all_reserved: float | None
    """The same slots and hours, all on demand."""
    reserved_only: float | None
    """The same training, rollouts and evaluations on the reserved slots alone, without previews: a lower bound."""
    reserved_only_hours: float | None
    saving: float | None
    """Share below all on demand."""
    unpriced_seconds: float
    stand_ins: float
    """Dollars of on-demand nodes that replaced spot nodes; part of the sum."""
    lines: list[CostLine]
    activities: list[ActivityCost]
    seconds: dict[SlotClass, dict[Activity, float]]
    cents: dict[Activity, int]
    """Cents by activity; they add up to the rounded dollars."""


def cost_panel(view: RunView, prices: PriceTable) -> CostPanel:
    bill = view.bill(prices)
    trained, dollars, cents = view.samples.trained, bill.dollars, bill.cents_by_activity()
    seconds = {slot_class: bill.seconds(slot_class) for slot_class in SlotClass}
    hours = {kind: math.fsum(each[kind] for each in seconds.values()) / HOUR_S for kind in LABELS}
    return CostPanel(
        priced_as_if=bill.table,
        date=bill.date,
        digest=bill.digest,
        sources=prices.sources,
        dollars=dollars,
        dollars_per_hour=burn_rate(view, prices),
        dollars_per_sample=dollars / trained if trained else None,
        all_reserved=bill.all_reserved,
        reserved_only=bill.reserved_only,
        reserved_only_hours=bill.reserved_only_hours,
        saving=1 - dollars / bill.all_reserved if bill.all_reserved else None,
        unpriced_seconds=bill.unpriced_seconds,
        stand_ins=bill.stand_in_dollars,
        lines=[_line(line, prices) for line in bill.lines],
        activities=[
            ActivityCost(activity=kind, gpu_hours=hours[kind], cents=cents[kind]) for kind in LABELS if hours[kind] > 0
        ],
        seconds=seconds,
        cents=cents,
    )


def busy_share(seconds: dict[Activity, float]) -> float:
    """Share of the paid seconds that is neither waiting nor lost work."""
    total = sum(seconds.values())
    idle = math.fsum(seconds.get(activity, 0.0) for activity in UNPRODUCTIVE)
    return 1 - idle / total if total else 0.0


def burn_rate(view: RunView, prices: PriceTable) -> float:
    """Dollars per hour of the slots that are held now; slots without a price are not counted."""
    rates = []
    for slot in view.meter.slots.open.values():
        known = prices.rows.get(slot.price)
        if known is not None and not (slot.slot_class is SlotClass.SPOT and known.spot_per_hour is None):
            rates.append(known.per_gpu_hour(slot.slot_class))
    return math.fsum(rates)


def _line(line: BillLine, prices: PriceTable) -> CostLine:
    known = prices.rows.get(line.price)
    return CostLine(
        slots="stand-in" if line.stands_in else line.slot_class.value,
        machine=f"{known.provider} {known.instance}, {known.gpu}" if known else line.price or "no price row",
        per_gpu_hour=line.per_gpu_hour,
        gpu_hours=line.total_seconds / HOUR_S,
        busy=busy_share(line.seconds),
        dollars=None if line.per_gpu_hour is None else line.dollars,
    )
