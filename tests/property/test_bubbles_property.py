"""Slot time of any journal: every second that a slot was held has exactly one kind."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from market_stories import bubbles

from spotlight.control.market.occupancy import Occupancy, OpenSlot
from spotlight.core.events import (
    AnyEvent,
    Crewing,
    ExplorationClosed,
    IterationDone,
    Leased,
    NodeJoined,
    NodeLost,
    Record,
    Released,
    RunResumed,
    RunStopped,
    Worked,
    WorkerJoined,
    WorkerLost,
)
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Activity, ReleaseReason, RequestId, SlotClass

SLOTS = 2
NODES = ("reserved-1.1", "spot-1.1", "stand-in-1.1")
KINDS = (
    *("up", "down", "worker", "worker", "gone", "work", "work", "work", "crew", "lease", "release", "discard"),
    *("done", "done", "resume", "stop"),
)
EVENTS = st.lists(
    st.tuples(
        st.floats(0, 900),
        st.sampled_from(KINDS),
        st.sampled_from(NODES),
        st.integers(0, SLOTS - 1),
        st.floats(-600, 300),
        st.floats(0, 1200),
        st.sampled_from(list(Activity)),
        st.integers(0, 12),
    ),
    max_size=60,
)


def event_of(kind: str, name: str, slot: int, start: float, length: float, activity: Activity, count: int) -> AnyEvent:
    node, worker = NodeId(name), WorkerId(f"{name}/{slot}.1")
    slot_class = SlotClass.SPOT if name.startswith("spot") else SlotClass.RESERVED
    request, mates = RequestId(f"rollout/0/0/{count % 3}"), tuple(WorkerId(f"{name}/{n}.1") for n in range(SLOTS))
    events: dict[str, AnyEvent] = {
        "up": NodeJoined(node=node, slot_class=slot_class, slots=SLOTS, price="aws-p5-h100"),
        "down": NodeLost(node=node, cause="x"),
        "worker": WorkerJoined(worker=worker, node=node, slot_class=slot_class, rows=1, trains=(slot == 0)),
        "gone": WorkerLost(worker=worker, cause="x"),
        "work": Worked(worker=worker, activity=activity, start=start, end=start + length),
        "crew": Crewing(node=node, epoch=1, crews=(mates,) if count % 2 else (), reason="x", seconds=length),
        "lease": Leased(request=request, attempt=1, worker=worker, step=count),
        "release": Released(request=request, attempt=1, reason=ReleaseReason.LOST, step=slot, redone=count),
        "discard": ExplorationClosed(iteration=0, finished=0, discarded=1, seconds=length, discarded_steps=count),
        "done": IterationDone(iteration=count, rollout_s=0.0, train_s=0.0, reward=0.0),
        "resume": RunResumed(attempt=2, wall=0.0),
        "stop": RunStopped(reason="x"),
    }
    return events[kind]


def journal(drawn: list[tuple[float, str, str, int, float, float, Activity, int]]) -> list[Record]:
    now, records = 0.0, []
    for seq, (after, kind, name, slot, offset, length, activity, count) in enumerate(drawn):
        now += after
        records.append(Record(seq, now, event_of(kind, name, slot, now + offset, length, activity, count)))
    return records


@settings(max_examples=150)
@given(EVENTS)
def test_stretches_of_a_slot_follow_one_another_from_its_first_instant_to_its_last(drawn):
    slots, stretches = Occupancy(), {}

    def spent(slot: OpenSlot, activity: Activity, start: float, end: float) -> None:
        before = stretches.get(slot.name)
        if before is not None and before[0] is slot:
            assert before[1] == start
        assert start < end
        stretches[slot.name] = (slot, end)

    held: dict[str, tuple[OpenSlot, float]] = {}
    for record in journal(drawn):
        last = slots.at
        slots.apply(record, spent)
        gone = {name: one for name, one in held.items() if slots.open.get(name) is not one[0]}
        for name, (slot, opened) in gone.items():
            closed = last if isinstance(record.event, RunResumed) else record.at
            assert slot.until == closed
            assert closed == opened or stretches[name] == (slot, closed)
        opened_now = {name: (slot, record.at) for name, slot in slots.open.items()}
        held = {name: new if name in gone else held.get(name, new) for name, new in opened_now.items()}


@settings(max_examples=150)
@given(EVENTS)
def test_kinds_add_up_to_the_time_held_and_iterations_to_the_run(drawn):
    records, slots, held = journal(drawn), Occupancy(), {}

    def spent(slot: OpenSlot, activity: Activity, start: float, end: float) -> None:
        held[slot.tenure] = held.get(slot.tenure, Fraction()) + Fraction(end) - Fraction(start)

    for record in records:
        slots.apply(record, spent)
    for slot, activity, start, end in slots.unreported(slots.at):
        spent(slot, activity, start, end)
    found = bubbles(records)
    assert {tenure: math.fsum(kinds.values()) for tenure, kinds in found.seconds.items()} == pytest.approx(
        {tenure: float(seconds) for tenure, seconds in held.items()}, rel=1e-12
    )
    assert all(seconds > 0 for kinds in found.seconds.values() for seconds in kinds.values())
    for tenure, kinds in found.seconds.items():
        for kind, seconds in kinds.items():
            parts = [one.seconds.get(tenure, {}).get(kind, 0.0) for one in found.iterations]
            assert math.fsum(parts) == pytest.approx(seconds, rel=1e-9, abs=1e-9)
    ends = [record.at for record in records if isinstance(record.event, IterationDone)]
    assert all(one.end is None or one.end in ends for one in found.iterations)
