"""Slot time by activity, by class of slot and by iteration."""

import msgspec
import pytest
from market_stories import bubbles, node, worked, worker

from spotlight.control.market.occupancy import Tenure
from spotlight.core.events import AnyEvent, IterationDone, Leased, NodeLost, Record, Released, WorkerJoined
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Activity, ReleaseReason, RequestId, SlotClass

TRAINS, SPOT = "reserved-1.1/0.1", "spot-1.1/0.1"


def journal_of(*events: tuple[float, AnyEvent]) -> list[Record]:
    return [Record(seq, at, event) for seq, (at, event) in enumerate(events)]


def done(iteration: int) -> IterationDone:
    return IterationDone(iteration=iteration, rollout_s=0.0, train_s=0.0, reward=0.0)


def reserved(name: str) -> AnyEvent:
    return node(name, slot_class=SlotClass.RESERVED)


def two_slots() -> tuple[tuple[float, AnyEvent], ...]:
    return (
        (0, reserved("reserved-1.1")),
        (0, worker(TRAINS, trains=True)),
        (0, node("spot-1.1")),
        (0, worker(SPOT, trains=False)),
    )


def test_iteration_has_the_seconds_between_the_end_of_the_last_one_and_its_own():
    found = bubbles(
        journal_of(
            *two_slots(),
            (40, worked(Activity.ASSIST, 0, 40, TRAINS)),
            (100, done(0)),
            # Reported after the end of an iteration, of time before and after it.
            (120, worked(Activity.TRAIN, 60, 120, TRAINS)),
            (120, worked(Activity.ROLLOUT, 0, 110, SPOT)),
            (150, done(1)),
            (170, NodeLost(node=NodeId("spot-1.1"), cause="taken")),
            (180, worked(Activity.PUBLISH, 170, 180, TRAINS)),
        )
    )
    first, second, under_way = found.iterations
    assert (first.iteration, first.start, first.end) == (0, 0, 100)
    assert first.seconds == {
        Tenure.RESERVED: {Activity.ASSIST: 40, Activity.IDLE: 20, Activity.TRAIN: 40},
        Tenure.SPOT: {Activity.ROLLOUT: 100},
    }
    assert second.seconds == {
        Tenure.RESERVED: {Activity.TRAIN: 20, Activity.IDLE: 30},
        Tenure.SPOT: {Activity.ROLLOUT: 10, Activity.IDLE: 40},
    }
    assert (under_way.iteration, under_way.end) == (2, None)
    assert under_way.seconds == {
        Tenure.RESERVED: {Activity.IDLE: 20, Activity.PUBLISH: 10},
        Tenure.SPOT: {Activity.IDLE: 20},
    }
    assert found.idle_shares() == pytest.approx({Tenure.RESERVED: 70 / 180, Tenure.SPOT: 60 / 170})


def test_reserved_slots_that_do_not_train_and_stand_ins_are_a_class_of_their_own():
    found = bubbles(
        journal_of(
            (0, reserved("reserved-1.1")),
            (0, reserved("reserved-2.1")),
            (0, reserved("stand-in-1.1")),
            (4, worker(TRAINS, trains=True)),
            (6, worker("reserved-2.1/0.1", trains=False)),
            (10, done(0)),
        )
    )
    assert found.seconds == {
        Tenure.RESERVED: {Activity.START: 4, Activity.IDLE: 6},
        Tenure.ON_DEMAND: {Activity.START: 6 + 10, Activity.IDLE: 4},
    }


def test_journal_without_the_trains_field_of_workers_is_still_read():
    old = b'{"type":"WorkerJoined","worker":"reserved-1.1/0.1","node":"reserved-1.1","slot_class":"reserved","rows":4}'
    came = msgspec.json.decode(old, type=WorkerJoined)
    found = bubbles(journal_of((0, reserved("reserved-1.1")), (4, came), (10, worked(Activity.TRAIN, 5, 10, TRAINS))))
    assert found.seconds == {Tenure.RESERVED: {Activity.START: 4, Activity.IDLE: 1, Activity.TRAIN: 5}}


def test_lost_help_counts_as_lost_like_rollouts():
    request = RequestId("rollout/0/0/1")
    found = bubbles(
        journal_of(
            *two_slots(),
            (0, Leased(request=request, attempt=1, worker=WorkerId(TRAINS))),
            (60, worked(Activity.ROLLOUT, 0, 20, TRAINS)),
            (60, worked(Activity.ASSIST, 20, 60, TRAINS)),
            (60, Released(request=request, attempt=1, reason=ReleaseReason.LOST, step=5, redone=5)),
        )
    )
    assert found.seconds[Tenure.RESERVED] == pytest.approx(
        {Activity.ROLLOUT: 10, Activity.ASSIST: 20, Activity.LOST: 30}
    )
