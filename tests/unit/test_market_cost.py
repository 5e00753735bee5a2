"""Regrouping and lost work in the meter, and a bill whose parts add up to the cent."""

import pytest
from market_stories import metered, node, seconds, worked, worker

from spotlight.control.market.bill import settle
from spotlight.control.market.prices import PriceTable
from spotlight.core.events import (
    Accepted,
    Crewing,
    ExplorationClosed,
    Leased,
    NodeLost,
    Previewed,
    Released,
    Restored,
    RunResumed,
    StepCommitted,
    WorkerLost,
)
from spotlight.core.types import Frontier, NodeId, Version, WorkerId
from spotlight.core.work import Activity, ReleaseReason, RequestId, SlotClass

ONE, TWO = "n.1/0.1", "n.1/1.1"


def crewing(*crews: tuple[str, ...], took: float) -> Crewing:
    members = tuple(tuple(WorkerId(name) for name in crew) for crew in crews)
    return Crewing(node=NodeId("n.1"), epoch=1, crews=members, reason="r", seconds=took)


def leased(request: str, attempt: int = 1, step: int = 0, name: str = ONE) -> Leased:
    return Leased(request=RequestId(request), attempt=attempt, worker=WorkerId(name), step=step)


def released(request: str, step: int, redone: int, attempt: int = 1) -> Released:
    return Released(request=RequestId(request), attempt=attempt, reason=ReleaseReason.LOST, step=step, redone=redone)


def accepted(request: str, steps: int, attempt: int = 1, name: str = ONE) -> Accepted:
    return Accepted(
        request=RequestId(request), attempt=attempt, worker=WorkerId(name), digest="d", reward=0.5, steps=steps
    )


def committed(step: int) -> StepCommitted:
    return StepCommitted(step=step, iteration=step, update=0, requests=(), frontier=Frontier(0), digest="d")


# -- regrouping --------------------------------------------------------------------------------------------------------


def test_waiting_for_a_crew_is_regrouping_and_not_idleness():
    meter = metered(
        (0, node(slots=2)),
        (0, worker(ONE)),
        (0, worker(TWO)),
        (10, crewing((ONE, TWO), took=4)),
        (20, worked(Activity.ROLLOUT, 10, 20, ONE)),
    )
    assert seconds(meter) == pytest.approx({"idle": 6 + 6 + 10, "regroup": 4 + 4, "rollout": 10})


def test_step_that_ran_on_while_a_crew_was_decided_stays_a_step():
    meter = metered(
        (0, node(slots=2)),
        (0, worker(ONE)),
        (0, worker(TWO)),
        (10, crewing((ONE, TWO), took=4)),
        (12, worked(Activity.ROLLOUT, 0, 9, ONE)),
        (12, worked(Activity.ROLLOUT, 0, 7, TWO)),
        (12, worked(Activity.IDLE, 7, 12, TWO)),
    )
    assert seconds(meter) == pytest.approx({"rollout": 9 + 7, "regroup": 1 + 3, "idle": 2 + 2})


def test_crew_that_stays_as_it_is_does_not_regroup_with_another():
    three, four = "n.1/2.1", "n.1/3.1"
    meter = metered(
        (0, node(slots=4)),
        *((0, worker(name)) for name in (ONE, TWO, three, four)),
        (0, crewing((ONE, TWO), took=0)),
        (10, crewing((ONE, TWO), (three, four), took=5)),
    )
    assert seconds(meter) == pytest.approx({"idle": 2 * 10 + 2 * 5, "regroup": 2 * 5})


def test_survivor_of_a_broken_crew_regroups_to_stand_alone():
    meter = metered(
        (0, node(slots=2)),
        (0, worker(ONE)),
        (0, worker(TWO)),
        (0, crewing((ONE, TWO), took=0)),
        (9, WorkerLost(worker=WorkerId(TWO), cause="killed")),
        (10, crewing(took=1)),
    )
    assert seconds(meter) == pytest.approx({"idle": 9 + 9, "regroup": 1, "start": 1})


# -- lost work ---------------------------------------------------------------------------------------------------------


def test_seconds_of_steps_that_are_done_again_are_lost():
    meter = metered(
        (0, node()),
        (0, worker()),
        (0, leased("rollout/0/0/1")),
        (0, leased("rollout/0/0/2")),
        (100, worked(Activity.ROLLOUT, 0, 100)),
        (100, accepted("rollout/0/0/1", steps=10)),
        (100, released("rollout/0/0/2", step=6, redone=4)),
    )
    # Twenty row-steps in 100 s, four of them lost.
    assert seconds(meter) == pytest.approx({"rollout": 80, "lost": 20})


def test_lost_work_is_charged_to_the_lost_machine():
    reserved = node("r.1", slot_class=SlotClass.RESERVED)
    meter = metered(
        (0, reserved),
        (0, worker("r.1/0.1")),
        (0, node()),
        (0, worker()),
        (0, leased("rollout/0/0/1")),
        (50, worked(Activity.ROLLOUT, 0, 50)),
        (50, NodeLost(node=NodeId("n.1"), cause="killed")),
        (50, released("rollout/0/0/1", step=0, redone=5)),
        (50, leased("rollout/0/0/1", attempt=2, name="r.1/0.1")),
        (100, worked(Activity.ROLLOUT, 50, 100, "r.1/0.1")),
        (100, accepted("rollout/0/0/1", steps=10, attempt=2, name="r.1/0.1")),
    )
    by_class = {tally.slot_class: tally.seconds for tally in meter.tallies()}
    assert by_class[SlotClass.SPOT][Activity.LOST] == pytest.approx(50)
    assert Activity.LOST not in by_class[SlotClass.RESERVED]


def test_handing_back_at_a_boundary_loses_nothing():
    meter = metered(
        (0, node()),
        (0, worker()),
        (0, leased("rollout/0/0/1")),
        (50, worked(Activity.ROLLOUT, 0, 50)),
        (50, released("rollout/0/0/1", step=5, redone=0)),
    )
    assert seconds(meter) == pytest.approx({"rollout": 50})


def test_flight_lost_with_the_controller_is_lost_whole():
    meter = metered(
        (0, node()),
        (0, worker()),
        (0, leased("evaluation/0/0/1", step=4)),
        (60, worked(Activity.EVALUATION, 0, 60)),
        (70, RunResumed(attempt=2, wall=0.0)),
        (70, released("evaluation/0/0/1", step=0, redone=10)),
    )
    assert seconds(meter) == pytest.approx({"lost": 60})


def test_optimizer_steps_that_are_undone_lose_their_share_of_training():
    meter = metered(
        (0, node()),
        (0, worker()),
        (10, committed(0)),
        (20, committed(1)),
        (30, committed(2)),
        (30, Restored(step=1, reason="the gang died")),
        (50, committed(1)),
        (60, committed(2)),
        (60, worked(Activity.TRAIN, 0, 60)),
    )
    assert seconds(meter) == pytest.approx({"train": 60 * 3 / 5, "lost": 60 * 2 / 5})


def test_previews_that_are_discarded_lose_their_share_of_previewing():
    previewed = Previewed(iteration=1, steps=6, version=Version(0), groups=(0, 0), seeds=(1, 2), rewards=(0.1, 0.2))
    meter = metered(
        (0, node()),
        (0, worker()),
        (60, worked(Activity.PREVIEW, 0, 60)),
        (60, previewed),
        (60, ExplorationClosed(iteration=1, finished=2, discarded=3, seconds=60, discarded_steps=8)),
    )
    assert seconds(meter) == pytest.approx({"preview": 60 * 12 / 20, "lost": 60 * 8 / 20})


def test_result_of_an_older_attempt_does_not_count_as_work_of_the_live_one():
    meter = metered(
        (0, node()),
        (0, worker()),
        (0, leased("rollout/0/0/1")),
        (10, released("rollout/0/0/1", step=0, redone=5)),
        (10, leased("rollout/0/0/1", attempt=2)),
        (20, worked(Activity.ROLLOUT, 0, 20)),
        (20, accepted("rollout/0/0/1", steps=10, attempt=1)),
    )
    assert seconds(meter) == pytest.approx({"lost": 20})


# -- dollars by state --------------------------------------------------------------------------------------------------


def test_bill_has_the_cost_of_lost_work_and_of_idle_time():
    meter = metered(
        (0, node()),
        (0, worker()),
        (0, leased("rollout/0/0/1")),
        (1800, worked(Activity.ROLLOUT, 0, 1800)),
        (1800, released("rollout/0/0/1", step=5, redone=5)),
        (3600, worked(Activity.IDLE, 1800, 3600)),
    )
    bill = settle(meter.tallies(), PriceTable.load(), reserved_slots=0)
    per_hour = 20.63 / 8
    assert bill.dollars_by_activity()[Activity.LOST] == pytest.approx(per_hour / 4)
    assert bill.dollars_by_activity()[Activity.IDLE] == pytest.approx(per_hour / 2)
    cents = bill.cents_by_activity()
    assert sum(cents.values()) == round(bill.dollars * 100) == 258
    assert cents[Activity.IDLE] == 129


def test_bill_lists_stand_ins_apart_at_the_on_demand_price():
    meter = metered(
        (0, node("reserved-1.1", slot_class=SlotClass.RESERVED)),
        (0, node("spot-1.1")),
        (3600, node("stand-in-1.1", slot_class=SlotClass.RESERVED)),
        (7200, NodeLost(node=NodeId("stand-in-1.1"), cause="given back")),
    )
    bill = settle(meter.tallies(), PriceTable.load(), reserved_slots=1)
    hours = {
        ("stand-in" if line.stands_in else line.slot_class.value): line.total_seconds / 3600 for line in bill.lines
    }
    assert hours == pytest.approx({"reserved": 2, "spot": 2, "stand-in": 1})
    assert bill.stand_in_dollars == pytest.approx(55.04 / 8)
    assert bill.dollars == pytest.approx(3 * 55.04 / 8 + 2 * 20.63 / 8)
