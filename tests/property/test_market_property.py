"""Bill of any journal: slot-seconds by state add up to the time billed, dollars by state to the cent."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.control.market.bill import settle
from spotlight.control.market.cost import CostMeter
from spotlight.control.market.prices import PriceTable
from spotlight.core.events import (
    Accepted,
    AnyEvent,
    Crewing,
    Leased,
    NodeJoined,
    NodeLost,
    Record,
    Released,
    Restored,
    RunResumed,
    StepCommitted,
    Worked,
    WorkerJoined,
    WorkerLost,
)
from spotlight.core.types import Frontier, NodeId, WorkerId
from spotlight.core.work import Activity, ReleaseReason, RequestId, SlotClass

SLOTS = 2
TABLE = PriceTable.load()
KINDS = ("up", "down", "worker", "gone", "work", "crew", "lease", "release", "accept", "step", "restore", "resume")
EVENTS = st.lists(
    st.tuples(
        st.floats(0, 900),
        st.sampled_from(KINDS),
        st.integers(0, 1),
        st.integers(0, SLOTS - 1),
        st.floats(-600, 300),
        st.floats(0, 1200),
        st.sampled_from(list(Activity)),
        st.integers(0, 12),
    ),
    max_size=60,
)


def event_of(
    kind: str, number: int, slot: int, start: float, length: float, activity: Activity, count: int
) -> AnyEvent:
    node = NodeId(f"n{number}.1")
    worker = WorkerId(f"{node}/{slot}.1")
    slot_class = SlotClass.SPOT if number else SlotClass.RESERVED
    request, attempt = RequestId(f"{('rollout', 'evaluation')[slot]}/0/0/{count % 3}"), 1 + count % 2
    mates = tuple(WorkerId(f"{node}/{place}.1") for place in range(SLOTS))
    events: dict[str, AnyEvent] = {
        "up": NodeJoined(node=node, slot_class=slot_class, slots=SLOTS, price="aws-p5-h100"),
        "down": NodeLost(node=node, cause="x"),
        "worker": WorkerJoined(worker=worker, node=node, slot_class=slot_class, rows=1),
        "gone": WorkerLost(worker=worker, cause="x"),
        "work": Worked(worker=worker, activity=activity, start=start, end=start + length),
        "crew": Crewing(node=node, epoch=1, crews=(mates,) if count % 2 else (), reason="x", seconds=length),
        "lease": Leased(request=request, attempt=attempt, worker=worker, step=count),
        "release": Released(request=request, attempt=attempt, reason=ReleaseReason.LOST, step=slot, redone=count),
        "accept": Accepted(request=request, attempt=attempt, worker=worker, digest="d", reward=0.0, steps=count),
        "step": StepCommitted(step=count, iteration=0, update=0, requests=(), frontier=Frontier(0), digest="d"),
        "restore": Restored(step=count, reason="x"),
        "resume": RunResumed(attempt=2, wall=0.0),
    }
    return events[kind]


@settings(max_examples=200)
@given(EVENTS)
def test_states_add_up_to_what_is_billed_for_any_journal(drawn):
    meter, now, paid = CostMeter(), 0.0, {SlotClass.RESERVED: 0.0, SlotClass.SPOT: 0.0}
    up: set[int] = set()
    for seq, (after, kind, number, slot, offset, length, activity, count) in enumerate(drawn):
        if kind != "resume":
            # No slot is held between a controller's death and the next controller.
            for one in up:
                paid[SlotClass.SPOT if one else SlotClass.RESERVED] += SLOTS * after
        now += after
        meter.apply(Record(seq, now, event_of(kind, number, slot, now + offset, length, activity, count)))
        up = set() if kind == "resume" else up | {number} if kind == "up" else up
        up = up - {number} if kind == "down" else up
    tallies = meter.tallies()
    for tally in tallies:
        assert tally.total == pytest.approx(paid[tally.slot_class], abs=1e-6)
        assert all(spent >= 0 for spent in tally.seconds.values())
    bill = settle(tallies, TABLE, reserved_slots=1)
    price = TABLE["aws-p5-h100"]
    owed = math.fsum(paid[one] / 3600 * price.per_gpu_hour(one) for one in SlotClass)
    assert bill.dollars == pytest.approx(owed, abs=1e-9 + 1e-9 * owed)
    assert math.fsum(bill.dollars_by_activity().values()) == pytest.approx(bill.dollars, abs=1e-9)
    assert sum(bill.cents_by_activity().values()) == round(bill.dollars * 100)
    assert all(
        abs(cents - 100 * bill.dollars_by_activity()[activity]) < 1 + 1e-6
        for activity, cents in bill.cents_by_activity().items()
    )
