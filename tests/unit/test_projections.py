"""The fold behind panel, report and status: the same numbers for all, at any record, through any snapshot."""

import json
import math

import pytest
from shown_panels import shown as shown_panel
from story_journal import GROUP_SIZE, GROUPS, REDONE, STEPS, RunScript, request, story

from spotlight.control.ledger.audit import audit
from spotlight.control.market.prices import PriceTable
from spotlight.core.events import (
    Accepted,
    AnyEvent,
    Dropped,
    Evaluated,
    Issued,
    Leased,
    NodeJoined,
    NodeLost,
    NoticeGiven,
    NoticeWithdrawn,
    Record,
    Refused,
    Released,
    Reopened,
    Restored,
    RunResumed,
    RunStopped,
    StepCommitted,
    Worked,
    WorkerJoined,
    WorkerLost,
)
from spotlight.core.types import Frontier, NodeId, WorkerId
from spotlight.core.work import Activity, NoticeKind, RefusalReason, ReleaseReason, SlotClass, Work
from spotlight.surface.json_output import json_line
from spotlight.surface.projections import RunView
from spotlight.surface.status import status
from spotlight.surface.timeline import TimelineState

PRICES = PriceTable.load()
WORKER = WorkerId("spot-1.1/0.1")


def seen(*timed: tuple[float, AnyEvent]) -> RunView:
    return RunView.of(Record(seq, at, event) for seq, (at, event) in enumerate(timed))


def joined(
    node: str = "spot-1.1", slots: int = 1, slot_class: SlotClass = SlotClass.SPOT
) -> list[tuple[float, AnyEvent]]:
    workers: list[tuple[float, AnyEvent]] = [
        (1.0, WorkerJoined(worker=WorkerId(f"{node}/{slot}.1"), node=NodeId(node), slot_class=slot_class, rows=1))
        for slot in range(slots)
    ]
    return [(0.0, NodeJoined(node=NodeId(node), slot_class=slot_class, slots=slots)), *workers]


# -- samples -----------------------------------------------------------------------------------------------------------


def test_every_rollout_is_in_one_place_at_every_record():
    view, issued = RunView(), 0
    for record in story():
        view.apply(record)
        if isinstance(record.event, Issued):
            issued += sum(one.work is Work.ROLLOUT for one in record.event.requests)
        places = view.samples.rollouts()
        assert sum(places.values()) == issued
        assert min(places.values()) >= 0
    assert places == {"queued": 0, "leased": 0, "accepted": 0, "trained": 80, "dropped": 0}


def test_restored_step_gives_its_samples_back_and_they_train_again():
    wanted = [request(Work.ROLLOUT, 0, 0, seed) for seed in range(2)]
    events: list[AnyEvent] = [Issued(requests=tuple(wanted))]
    for one in wanted:
        events += [
            Leased(request=one.id, attempt=1, worker=WORKER),
            Accepted(request=one.id, attempt=1, worker=WORKER, digest="d", reward=1.0),
        ]
    step = StepCommitted(
        step=0, iteration=0, update=0, requests=tuple(one.id for one in wanted), frontier=Frontier(1), digest="t"
    )
    events += [step, Restored(step=0, reason="rank died")]
    view = seen(*((0.0, event) for event in events))
    assert view.samples.rollouts()["accepted"] == 2
    assert view.samples.trained == 0
    for seq, event in enumerate(
        (Reopened(request=wanted[0].id, reason="file lost"), Dropped(request=wanted[1].id, reason="x"))
    ):
        view.apply(Record(100 + seq, 1.0, event))
    assert view.samples.rollouts() == {"queued": 1, "leased": 0, "accepted": 0, "trained": 0, "dropped": 1}


def test_waste_counts_steps_done_again_by_why_the_attempt_ended():
    one = request(Work.ROLLOUT, 0, 0, 0)
    view = seen(
        (0, Issued(requests=(one,))),
        (1, Leased(request=one.id, attempt=1, worker=WORKER)),
        (2, Released(request=one.id, attempt=1, reason=ReleaseReason.LOST, step=4, redone=2)),
        (3, Leased(request=one.id, attempt=2, worker=WORKER, step=4)),
        (4, Released(request=one.id, attempt=2, reason=ReleaseReason.HANDED_BACK, step=6, redone=0)),
        (5, Leased(request=one.id, attempt=3, worker=WORKER, step=6)),
        (6, Refused(request=one.id, attempt=1, worker=WORKER, reason=RefusalReason.FENCED)),
        (7, Accepted(request=one.id, attempt=3, worker=WORKER, digest="d", reward=1.0, steps=4)),
    )
    assert view.samples.redone_by == {"lost": 2, "handed_back": 0}
    # Four steps by the first attempt, two by the second, four by the third; two were done again.
    assert view.samples.steps_done == 10
    assert view.waste == pytest.approx(2 / 12)
    assert view.samples.refused == {"fenced": 1}


# -- machines ----------------------------------------------------------------------------------------------------------


def test_slot_row_holds_successive_machines():
    view = RunView.of(story())
    assert list(view.timeline.rows) == ["reserved-1/0", "spot-1/0", "spot-1/1", "spot-2/0"]
    assert [life.worker for life in view.timeline.rows["spot-2/0"].lives] == [
        "spot-2.1/0.1",
        "spot-2.2/0.1",
        "spot-2.3/0.1",
    ]


def test_status_names_zone_kind_and_age_of_the_machine_that_fills_a_slot():
    node, worker = NodeId("spot-1.1"), WorkerId("spot-1.1/0.1")
    came = NodeJoined(node=node, slot_class=SlotClass.SPOT, slots=1, zone="us-east4-a", age_s=600.0)
    view = seen(
        (5.0, came), (9.0, WorkerJoined(worker=worker, node=node, slot_class=SlotClass.SPOT, rows=1, kind="L4"))
    )
    (slot,) = status(view, PRICES).slots
    assert (slot.zone, slot.kind, slot.age_s) == ("us-east4-a", "L4", 604.0)
    view.apply(Record(2, 20.0, NodeLost(node=node, cause="preempted")))
    assert status(view, PRICES).slots[0].age_s is None


def test_spans_of_a_row_never_overlap_and_pieces_of_one_activity_join():
    view = seen(
        *joined(),
        (2, Worked(worker=WORKER, activity=Activity.ROLLOUT, start=1, end=2)),
        (3, Worked(worker=WORKER, activity=Activity.ROLLOUT, start=2.1, end=3)),
        (4, Worked(worker=WORKER, activity=Activity.PREVIEW, start=2.5, end=4)),
    )
    spans = view.timeline.rows["spot-1/0"].spans
    assert [(span.activity, span.start, span.end) for span in spans] == [
        (Activity.ROLLOUT, 1, 3),
        (Activity.PREVIEW, 3, 4),
    ]


def test_loss_of_a_node_with_two_slots_is_one_preemption_of_two_workers():
    lost = [WorkerLost(worker=WorkerId(f"spot-1.1/{slot}.1"), cause="killed", noticed=True) for slot in range(2)]
    view = seen(
        *joined(slots=2), (9, lost[0]), (9.1, lost[1]), (9.2, NodeLost(node=NodeId("spot-1.1"), cause="killed"))
    )
    (taken,) = view.timeline.preemptions
    assert (taken.workers, taken.noticed, taken.at) == (2, True, 9)


def test_lost_node_takes_its_workers_with_it_and_remembers_the_notice():
    notice = NoticeGiven(worker=WORKER, kind=NoticeKind.IMMINENT, seconds=30)
    view = seen(*joined(), (5, notice), (15, NodeLost(node=NodeId("spot-1.1"), cause="killed")))
    (taken,) = view.timeline.preemptions
    assert taken.noticed
    row = view.timeline.rows["spot-1/0"]
    assert (row.notices[0].start, row.notices[0].end) == (5, 15)
    assert view.timeline.state(row) is TimelineState.AWAY


def test_withdrawn_notice_ends_there_and_a_later_loss_has_no_notice():
    notice = NoticeGiven(worker=WORKER, kind=NoticeKind.IMMINENT, seconds=30)
    view = seen(*joined(), (5, notice))
    row = view.timeline.rows["spot-1/0"]
    assert view.timeline.state(row) is TimelineState.NOTICE
    view = seen(*joined(), (5, notice), (8, NoticeWithdrawn(worker=WORKER)))
    row = view.timeline.rows["spot-1/0"]
    assert (row.notices[0].end, row.notices[0].withdrawn) == (8, True)
    assert view.timeline.state(row) is not TimelineState.NOTICE
    lost = (15, NodeLost(node=NodeId("spot-1.1"), cause="killed"))
    view = seen(*joined(), (5, notice), (8, NoticeWithdrawn(worker=WORKER)), lost)
    assert not view.timeline.preemptions[0].noticed
    assert view.timeline.rows["spot-1/0"].notices[0].end == 8


def test_report_marks_where_a_notice_was_withdrawn():
    notice = NoticeGiven(worker=WORKER, kind=NoticeKind.IMMINENT, seconds=30)
    assert shown_panel(seen(*joined(), (5, notice)), "timeline").count('class="withdrawn"') == 1, "in the legend"
    drawn = shown_panel(seen(*joined(), (5, notice), (8, NoticeWithdrawn(worker=WORKER))), "timeline")
    assert drawn.count('class="withdrawn"') == 2
    assert "imminent notice at 0:05, withdrawn at 0:08" in drawn


def test_notice_without_a_time_lasts_until_the_next_one():
    advisory = NoticeGiven(worker=WORKER, kind=NoticeKind.ADVISORY, seconds=None)
    view = seen(*joined(), (5, advisory), (500, Issued(requests=())))
    row = view.timeline.rows["spot-1/0"]
    assert view.timeline.state(row) is TimelineState.NOTICE
    imminent = NoticeGiven(worker=WORKER, kind=NoticeKind.IMMINENT, seconds=30)
    row = seen(*joined(), (5, advisory), (50, imminent)).timeline.rows["spot-1/0"]
    assert [(span.start, span.end) for span in row.notices] == [(5, 50), (50, 80)]


def test_orderly_end_and_reserved_failure_are_no_preemptions():
    view = seen(
        *joined(),
        *joined("reserved-1.1", slot_class=SlotClass.RESERVED),
        (5, WorkerLost(worker=WORKER, cause="drained")),
        (6, WorkerLost(worker=WorkerId("reserved-1.1/0.1"), cause="killed")),
    )
    assert view.timeline.preemptions == []
    assert view.timeline.failures == 1


def test_machines_released_when_a_run_stops_are_not_preempted():
    killed, stopped = WorkerLost(worker=WORKER, cause="killed"), RunStopped(reason="drained")
    other = WorkerLost(worker=WorkerId("spot-2.1/0.1"), cause="connection lost")
    view = seen(*joined(), *joined("spot-2.1"), (9, killed), (10, Issued(requests=())), (20, other), (21, stopped))
    assert [taken.at for taken in view.timeline.preemptions] == [9]
    assert view.timeline.rows["spot-2/0"].losses == []


def test_restart_of_the_controller_ends_workers_without_a_preemption():
    view = seen(*joined(), (50, RunResumed(attempt=2, wall=0.0)))
    assert view.timeline.preemptions == []
    assert view.timeline.rows["spot-1/0"].lives[0].end == 1.0
    assert view.timeline.restarts == [50]
    assert view.facts.attempts == 2


def test_story_counts_preemptions_with_and_without_notice():
    line = RunView.of(story()).timeline
    assert [(taken.node, taken.noticed, taken.workers) for taken in line.preemptions] == [
        ("spot-2.1", False, 1),
        ("spot-1.1", True, 2),
        ("spot-1.2", False, 2),
        ("spot-2.2", False, 1),
    ]


# -- the whole view ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, 57, 200, 380])
def test_fold_through_a_snapshot_equals_the_fold_at_once(cut: int):
    records = story()
    half = RunView.from_bytes(RunView.of(records[:cut]).to_bytes())
    # A reader that receives some records twice must not count them twice.
    for record in records[max(0, cut - 20) :]:
        half.apply(record)
    assert half == RunView.of(records)


def test_previews_are_planned_finished_discarded_and_measured_per_iteration():
    explored = RunView.of(story()).explorations[2]
    assert (explored.planned, explored.finished, explored.previewed, explored.discarded) == (64, 48, 48, 16)
    assert (explored.selected, explored.fresh) == (GROUPS * GROUP_SIZE, 0)
    assert explored.figures["spearman"] == 0.8


def test_iteration_that_is_repeated_after_a_restore_is_listed_once():
    script = RunScript()
    script.start()
    wanted = script.roll_out(0)
    script.train(0, wanted)
    script.add(Restored(step=0, reason="rank died"))
    script.now += 1
    script.train(0, wanted)
    view = RunView.of(script.records())
    assert [one.iteration for one in view.iterations] == [0]
    assert view.samples.trained == GROUPS * GROUP_SIZE


def test_gallery_lists_pictures_of_evaluations_with_their_prompts():
    view = RunView.of(story(iterations=1))
    assert [(one.iteration, one.group, one.path) for one in view.gallery[:2]] == [
        (0, 0, "images/0000-0.png"),
        (0, 1, "images/0000-1.png"),
    ]
    assert view.gallery[0].prompt == "harbour"


def test_headline_prefers_exact_match_to_reward():
    assert RunView().headline() is None
    assert seen((0, Evaluated(iteration=0, scores={"reward": (1, 0, 2)}))).headline() == "reward"
    assert RunView.of(story()).headline() == "exact"


def test_score_that_is_no_number_is_not_shown():
    view = seen((0, Evaluated(iteration=0, scores={"exact": (math.nan, 0, 1), "reward": (0.5, 0.4, 0.6)})))
    assert view.headline() == "reward"
    assert view.curve("exact") == []


def test_status_json_agrees_with_the_view():
    view = RunView.of(story())
    printed = json.loads(json_line(status(view, PRICES)))
    assert printed["samples"]["rollouts"]["trained"] == view.samples.trained == 80
    assert printed["samples"]["steps_redone"] == {"lost": 16 * REDONE, "handed_back": 0}
    assert printed["samples"]["steps_done"] == view.samples.steps_done == (80 + 24) * STEPS
    assert printed["losses"] == {
        "preemptions": 4,
        "noticed": 1,
        "unnoticed": 3,
        "spot_workers": 6,
        "reserved_workers": 0,
        "restarts": 0,
    }
    assert printed["cost"]["dollars"] == pytest.approx(view.bill(PRICES).dollars)
    assert printed["cost"]["digest"] == PRICES.digest
    spent = sum(sum(by.values()) for by in printed["cost"]["seconds"].values())
    assert spent == pytest.approx(math.fsum(tally.total for tally in view.meter.tallies()))


def test_status_of_a_run_without_records_is_empty_but_complete():
    empty = status(RunView(), PRICES)
    assert (empty.iterations, empty.slots, empty.headline, empty.cost.dollars) == ([], [], None, 0.0)


def test_view_and_audit_agree_on_what_happened():
    records = story()
    view, found = RunView.of(records), audit(records)
    assert found.clean
    assert f"({view.waste:.2%})" in " ".join(found.sentences())


# -- panel -------------------------------------------------------------------------------------------------------------
