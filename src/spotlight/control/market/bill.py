"""The cost of metered seconds at list prices, and the cost of two alternatives.

Two counterfactuals, with the same price table:
- `all_reserved`: the same slots for the same time, all of them on demand;
- `reserved_only`: the same training, rollouts and evaluations on the reserved slots alone, without previews, at the
  same speed per slot and perfectly packed: a lower bound of its hours and dollars.

Invariant: dollars are the integral of the price over the metered seconds (tests/unit/test_market.py), and the costs of
the activities add up to it, also in whole cents (tests/unit/test_market_cost.py).
"""

import math
from collections.abc import Sequence

import msgspec

from spotlight.control.market.cost import SlotSeconds
from spotlight.control.market.prices import PriceTable
from spotlight.core.work import Activity, SlotClass

HOUR_S = 3600.0
NEEDED = (Activity.ROLLOUT, Activity.ASSIST, Activity.EVALUATION, Activity.TRAIN, Activity.PUBLISH)
"""Activities that a run without spot machines and previews needs too."""


class BillLine(msgspec.Struct, frozen=True, kw_only=True):
    """All slots of one class and price; stand-ins for spot nodes have their own line."""

    slot_class: SlotClass
    price: str
    per_gpu_hour: float | None
    """None if the table has no price: the line is not in the sum."""
    seconds: dict[Activity, float]
    stands_in: bool = False

    @property
    def total_seconds(self) -> float:
        return math.fsum(self.seconds.values())

    @property
    def dollars(self) -> float:
        return self.total_seconds / HOUR_S * (self.per_gpu_hour or 0.0)


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a run in dollars, as if the slots were GPUs of the table."""

    table: str
    date: str
    digest: str
    lines: tuple[BillLine, ...]
    all_reserved: float | None
    reserved_only: float | None
    reserved_only_hours: float | None

    @property
    def dollars(self) -> float:
        return math.fsum(line.dollars for line in self.lines)

    @property
    def unpriced_seconds(self) -> float:
        return math.fsum(line.total_seconds for line in self.lines if line.per_gpu_hour is None)

    def seconds(self, slot_class: SlotClass) -> dict[Activity, float]:
        lines = [line for line in self.lines if line.slot_class is slot_class]
        return {activity: math.fsum(line.seconds.get(activity, 0.0) for line in lines) for activity in Activity}

    def dollars_by_activity(self) -> dict[Activity, float]:
        """Dollars per activity, over all lines with a price."""
        return {
            activity: math.fsum(
                line.seconds.get(activity, 0.0) / HOUR_S * (line.per_gpu_hour or 0.0) for line in self.lines
            )
            for activity in Activity
        }

    def cents_by_activity(self) -> dict[Activity, int]:
        """Whole cents per activity, which add up to the rounded total: the largest remainders are rounded up."""
        exact = {activity: dollars * 100 for activity, dollars in self.dollars_by_activity().items()}
        cents = {activity: math.floor(amount) for activity, amount in exact.items()}
        missing = round(self.dollars * 100) - sum(cents.values())
        by_remainder = sorted(exact, key=lambda activity: cents[activity] - exact[activity])
        for activity in by_remainder[: max(missing, 0)]:
            cents[activity] += 1
        return cents

    @property
    def stand_in_dollars(self) -> float:
        return math.fsum(line.dollars for line in self.lines if line.stands_in)


def settle(tallies: Sequence[SlotSeconds], table: PriceTable, reserved_slots: int) -> Bill:
    """Return the bill of these seconds; `reserved_slots` is the number of slots of the reserved-only run."""
    lines = tuple(
        BillLine(
            slot_class=tally.slot_class,
            price=tally.price,
            per_gpu_hour=_rate(table, tally.price, tally.slot_class),
            seconds={activity: tally.seconds[activity] for activity in Activity if activity in tally.seconds},
            stands_in=tally.stands_in,
        )
        for tally in tallies
    )
    on_demand = [_rate(table, line.price, SlotClass.RESERVED) for line in lines]
    reserved = [rate for line, rate in zip(lines, on_demand, strict=True) if line.slot_class is SlotClass.RESERVED]
    needed_s = math.fsum(line.seconds.get(activity, 0.0) for line in lines for activity in NEEDED)
    rate = max((rate for rate in reserved if rate is not None), default=None) if needed_s else None
    return Bill(
        table=table.name,
        date=table.date,
        digest=table.digest,
        lines=lines,
        all_reserved=_at(lines, on_demand),
        reserved_only=None if rate is None else needed_s / HOUR_S * rate,
        reserved_only_hours=needed_s / HOUR_S / reserved_slots if reserved_slots and rate is not None else None,
    )


def _at(lines: Sequence[BillLine], rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    if not known or len(known) < len(rates):
        return None
    return math.fsum(line.total_seconds / HOUR_S * rate for line, rate in zip(lines, known, strict=True))


def _rate(table: PriceTable, name: str, slot_class: SlotClass) -> float | None:
    """Return the rate; None for a row that the table lacks, which a report shows instead of failing."""
    price = table.rows.get(name)
    if price is None or (slot_class is SlotClass.SPOT and price.spot_per_hour is None):
        return None
    return price.per_gpu_hour(slot_class)
