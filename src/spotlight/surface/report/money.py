"""Cost at list prices, alternatives for the same work, and cost by activity."""

import math

from spotlight.control.market.bill import HOUR_S, Bill, BillLine
from spotlight.control.market.prices import PriceTable
from spotlight.core.work import Activity, SlotClass
from spotlight.surface.projections import RunView
from spotlight.surface.report.formats import UNKNOWN, dollars, duration, percent, safe
from spotlight.surface.report.markup import row, section, table
from spotlight.surface.report.timeline_chart import LABELS

UNPRODUCTIVE = (Activity.IDLE, Activity.START, Activity.SWITCH, Activity.REGROUP, Activity.LOST)


def cost_section(view: RunView, prices: PriceTable) -> str:
    bill = view.bill(prices)
    if not bill.lines:
        return ""
    lead = "Priced as if every slot were a GPU of the list. A machine is paid from joining to leaving, busy or not."
    rows = "".join(_line(line, prices) for line in bill.lines)
    sums = (
        _sum_row("This run", bill, bill.dollars)
        + _sum_row("The same slots and hours, all on demand", bill, bill.all_reserved)
        + _sum_row(_reserved_only(bill), bill, bill.reserved_only)
    )
    heads = ("slots", "priced as if", "$ / GPU-hour", "GPU-hours", "busy", "cost")
    source = f"Price list {bill.table}, {bill.date}, digest {bill.digest}. Source: {'; '.join(prices.sources)}."
    if bill.unpriced_seconds:
        source += f" {duration(bill.unpriced_seconds)} of slot time have no price and are not in the sum."
    spent = f"""<div class="numbers">{_spent(bill)}</div>"""
    body = f"""{table(heads, rows + sums)}{spent}<p class="fine">{safe(source)}</p>"""
    return section("Cost at list prices", lead, body)


def busy_share(seconds: dict[Activity, float]) -> float:
    """Share of the paid seconds that is neither waiting nor lost work."""
    total = sum(seconds.values())
    idle = math.fsum(seconds.get(activity, 0.0) for activity in UNPRODUCTIVE)
    return 1 - idle / total if total else 0.0


def _line(line: BillLine, prices: PriceTable) -> str:
    known = prices.rows.get(line.price)
    machine = f"{known.provider} {known.instance}, {known.gpu}" if known else line.price or "no price row"
    rate, amount = UNKNOWN, UNKNOWN
    if line.per_gpu_hour is not None:
        rate, amount = f"${line.per_gpu_hour:.2f}", dollars(line.dollars)
    hours, busy = f"{line.total_seconds / HOUR_S:,.3f}", percent(busy_share(line.seconds))
    return row("stand-in" if line.stands_in else line.slot_class.value, machine, rate, hours, busy, amount)


def _spent(bill: Bill) -> str:
    """Dollars by activity, in cents that add up to the rounded total."""
    cents, of = bill.cents_by_activity(), {slot_class: bill.seconds(slot_class) for slot_class in SlotClass}
    hours = {activity: math.fsum(seconds[activity] for seconds in of.values()) / HOUR_S for activity in LABELS}
    rows = "".join(
        row(label, f"{hours[activity]:,.3f}", f"${cents[activity] / 100:,.2f}")
        for activity, label in LABELS.items()
        if hours[activity] > 0
    )
    return table(("activity", "GPU-hours", "cost"), rows)


def _reserved_only(bill: Bill) -> str:
    hours = bill.reserved_only_hours
    least = "" if hours is None else f", {duration(hours * HOUR_S)} at least"
    return f"The same training, rollouts and evaluations on the reserved slots alone, without previews{least}"


def _sum_row(label: str, bill: Bill, amount: float | None) -> str:
    times = f"{amount / bill.dollars:.2f}×" if amount is not None and bill.dollars > 0 else ""
    return f'<tr class="sum"><th colspan="4">{safe(label)}</th><td>{times}</td><td>{dollars(amount)}</td></tr>'
