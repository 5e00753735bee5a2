"""Crews as users see them: in the status, and in a slot's line of the report."""

import json

import msgspec
import pytest
from shown_panels import rows_of, shown

from spotlight.control.ledger.audit import audit
from spotlight.control.market.prices import PriceTable
from spotlight.core.events import AnyEvent, Crewing, NodeJoined, NodeLost, Record, RunResumed, WorkerJoined, WorkerLost
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import SlotClass
from spotlight.surface.html.timeline_drawing import drawn_timeline
from spotlight.surface.json_output import json_line
from spotlight.surface.projections import RunView
from spotlight.surface.status import status

NODE = NodeId("spot-1.1")
A, B, C = WORKERS = tuple(WorkerId(f"{NODE}/{slot}.1") for slot in range(3))
PRICES = PriceTable.load()


def crewing(epoch: int, *crews: tuple[WorkerId, ...]) -> Crewing:
    return Crewing(node=NODE, epoch=epoch, crews=crews, reason="as requested", seconds=0.1)


def records(*timed: tuple[float, AnyEvent]) -> list[Record]:
    """The records after three slots of a node have joined at 0 s."""
    arrivals: list[tuple[float, AnyEvent]] = [(0.0, NodeJoined(node=NODE, slot_class=SlotClass.SPOT, slots=3))]
    arrivals += [(0.0, WorkerJoined(worker=one, node=NODE, slot_class=SlotClass.SPOT, rows=1)) for one in WORKERS]
    return [Record(seq, at, event) for seq, (at, event) in enumerate([*arrivals, *timed])]


def shared_s(view: RunView) -> dict[str, float]:
    return {row.name: row.crewed_until(view.at) for row in view.timeline.ordered()}


def test_crew_time_counts_for_each_member_while_it_belongs_to_the_crew():
    view = RunView.of(
        records(
            (1.0, crewing(1, (A, B, C))),
            (3.0, crewing(1)),
            (3.0, WorkerLost(worker=B, cause="killed", noticed=False)),
            (4.0, crewing(2, (A, C))),
            (8.0, crewing(2)),
            (10.0, crewing(2)),
        )
    )
    assert shared_s(view) == {"spot-1/0": 6.0, "spot-1/1": 2.0, "spot-1/2": 6.0}
    assert view.timeline.crews_formed == 2


@pytest.mark.parametrize("end", [NodeLost(node=NODE, cause="connection lost"), RunResumed(attempt=2, wall=0.0)])
def test_crews_end_with_their_node_and_with_the_controller(end: AnyEvent):
    view = RunView.of(records((1.0, crewing(1, (A, B))), (5.0, crewing(1, (A, B))), (5.0, end), (9.0, crewing(1))))
    assert shared_s(view) == {"spot-1/0": 4.0, "spot-1/1": 4.0, "spot-1/2": 0.0}
    assert view.timeline.crews == {}


def test_status_names_the_slots_that_share_samples_now():
    view = RunView.of(records((1.0, crewing(1, (B, A))), (2.0, crewing(2, (B, A, C)))))
    assert json.loads(json_line(status(view, PRICES)))["crews"] == {
        "now": [["spot-1/1", "spot-1/0", "spot-1/2"]],
        "formed": 2,
    }


def test_report_shows_the_share_of_time_that_a_slot_was_in_a_crew():
    view = RunView.of(records((2.0, crewing(1, (A, B))), (8.0, crewing(1))))
    rows = view.timeline.ordered()
    assert [row.crew_share(view.at) for row in rows] == [0.75, 0.75, 0.0]
    assert [("in a crew 75" in row.title) for row in drawn_timeline(view).rows] == [True, True, False]
    assert [cells[-1] for cells in rows_of(shown(view, "timeline")).values()] == ["75 %", "75 %", "0 %"]


def test_slots_in_crews_are_counted_by_degree_and_one_layout_is_one_regroup():
    view = RunView.of(
        records(
            (2.0, crewing(1, (A, B))),
            (4.0, crewing(1)),
            (5.0, crewing(2, (A, B, C))),
            (6.0, NodeLost(node=NODE, cause="connection lost")),
            (7.0, crewing(3, (A, B))),
            (7.5, crewing(3, (A, B), (C, WorkerId(f"{NODE}/3.1")))),
            (8.0, crewing(3)),
        )
    )
    assert view.crews.formed == {2: 3, 3: 1}
    assert [(one.at, one.epoch, one.degrees) for one in view.crews.regroups] == [
        (2.0, 1, (2,)),
        (5.0, 2, (3,)),
        (7.5, 3, (2, 2)),
    ]
    assert view.crews.slots_over(8.0, 4) == [{}, {2: 2.0}, {3: 1.5}, {2: pytest.approx(1.5)}]


def test_report_has_a_section_on_crews_only_if_there_were_any():
    assert shown(RunView.of(records((9.0, crewing(1)))), "crews") == ""
    section = shown(RunView.of(records((2.0, crewing(1, (A, B))), (8.0, crewing(1)))), "crews")
    assert "1 crew of up to 2 slots formed in 1 regroup, which took 100 ms" in section
    assert "in crews of 2" in section
    assert "as requested" in section


def test_view_with_crews_survives_a_snapshot_and_the_audit_finds_nothing():
    history = records((1.0, crewing(1, (A, B))), (2.0, crewing(2, (A, B, C))))
    view = RunView.of(history[:-1])
    again = RunView.from_bytes(view.to_bytes())
    again.apply(history[-1])
    assert msgspec.to_builtins(again) == msgspec.to_builtins(RunView.of(history))
    assert audit(history).clean
