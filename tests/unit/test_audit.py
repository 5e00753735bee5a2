"""The audit: a clean history passes; wrong histories of samples, leases, results and workers are located."""

import pytest
from ledger_stories import (
    AUDIT,
    BASE,
    EVALUATION,
    FINISHED,
    PAIR,
    READY,
    TRAINED,
    W1,
    W2,
    A,
    B,
    breaches,
    findings,
    grid,
    issued,
    made,
    published,
    records,
    released,
    result,
    started,
    stepped,
    wanted,
)

from spotlight.control.ledger import SampleState
from spotlight.control.ledger.audit import Auditor, audit
from spotlight.control.ledger.findings import Bounds, Invariant
from spotlight.core.events import (
    Checkpointed,
    Dropped,
    IterationDone,
    Leased,
    NoticeGiven,
    NoticeWithdrawn,
    Record,
    Refused,
    Reopened,
    Restored,
    RunResumed,
    RunStopped,
    Worked,
    WorkerLost,
)
from spotlight.core.types import WorkerId
from spotlight.core.work import Activity, NoticeKind, RefusalReason, ReleaseReason, Work

# -- clean -------------------------------------------------------------------------------------------------------------


def eventful():
    """A run with a loss, a late reply, a reduced group, a restore, a reopened sample, an audit and an evaluation."""
    c, d = wanted(1, 0), wanted(1, 1)
    e, f = wanted(0, 0, iteration=1, version=1), wanted(0, 1, iteration=1, version=1)
    return [
        started(),
        issued([A, B, c, d], [0, 1]),
        issued([AUDIT, EVALUATION], ()),
        Leased(request=A.id, attempt=1, worker=W1),
        NoticeGiven(worker=W2, kind=NoticeKind.IMMINENT, seconds=60.0),
        released(A, reason=ReleaseReason.LOST, step=4, redone=3),
        WorkerLost(worker=W1, cause="killed"),
        Leased(request=A.id, attempt=2, worker=W2, step=4),
        Refused(request=A.id, attempt=1, worker=W1, reason=RefusalReason.FENCED),
        result(A.id, 2, W2),
        *made(B, worker=W2),
        *made(c, worker=W2),
        Dropped(request=d.id, reason="scoring failed 3 times"),
        *made(AUDIT, worker=W2),
        *made(EVALUATION, worker=W2),
        Reopened(request=B.id, reason="file damaged"),
        *made(B, attempt=2, worker=W2),
        stepped(0, [c], 2, [0]),
        Checkpointed(step=1, path="checkpoints/1"),
        stepped(1, [A, B], 2),
        published(1, 2),
        IterationDone(iteration=0, rollout_s=1.0, train_s=1.0, reward=0.5),
        issued([e, f], [2]),
        RunResumed(attempt=1, wall=0.0),
        Restored(step=1, reason="controller restarted"),
        stepped(1, [A, B], 2),
        published(1, 2, "digest-1-again"),
        *made(e, worker=W2, digest="digest-1-again"),
        *made(f, worker=W2, digest="digest-1-again"),
        stepped(2, [e, f], 3, iteration=1),
        FINISHED,
    ]


def test_an_eventful_but_correct_run_is_clean_at_every_record_and_counted():
    auditor = Auditor(Bounds(max_lag=0, commit_every=3))
    for record in records(eventful()):
        assert auditor.check(record) == []
    report = auditor.report()
    assert report.clean
    assert report.finished
    assert report.issued == {Work.ROLLOUT: 6, Work.AUDIT: 1, Work.EVALUATION: 1}
    assert report.states == {SampleState.TRAINED: 5, SampleState.DROPPED: 1, SampleState.ACCEPTED: 2}
    assert (report.steps, report.steps_undone, report.reopened, report.restarts) == (3, 1, 1, 1)
    assert list(report.gaps.dropped.values()) == ["scoring failed 3 times"]
    assert report.refused == {RefusalReason.FENCED: 1}
    assert report.released == {ReleaseReason.LOST: 1}
    assert (report.workers_lost, report.workers_lost_noticed) == (1, 0)
    assert report.waste.without_notice == report.waste.redone == report.waste.largest == 3
    assert report.waste.share == pytest.approx(3 / (8 * 10 + 3))
    assert report.sentences()[-1].startswith("Clean")


def test_steps_redone_are_counted_by_cause():
    others = [wanted(0, seed) for seed in range(2, 6)]
    samples = [A, B, *others]
    workers = [WorkerId(f"w{number}") for number in range(6)]
    report = audit(
        records(
            [
                started(),
                issued(samples),
                *[Leased(request=r.id, attempt=1, worker=w) for r, w in zip(samples, workers, strict=True)],
                NoticeGiven(worker=workers[0], kind=NoticeKind.IMMINENT, seconds=100.0),
                NoticeGiven(worker=workers[1], kind=NoticeKind.ADVISORY, seconds=100.0),
                released(samples[0], reason=ReleaseReason.LOST, redone=1),
                released(samples[1], reason=ReleaseReason.SILENT, redone=2),
                released(samples[2], reason=ReleaseReason.RECALLED, step=8, redone=4),
                released(samples[3], reason=ReleaseReason.FAILED, redone=16),
                released(samples[4], reason=ReleaseReason.RESTART, redone=32),
                # Its flight of 8 steps was lost with the controller: the next attempt starts over.
                Leased(request=samples[2].id, attempt=2, worker=workers[0]),
            ]
        )
    )
    assert report.clean, report.sentences()
    waste = report.waste
    assert (waste.with_notice, waste.without_notice, waste.moved, waste.failed, waste.restart) == (1, 2, 4, 16, 40)
    assert waste.redone == 63


def test_an_unfinished_run_may_have_samples_under_way():
    assert findings([*PAIR, Leased(request=A.id, attempt=1, worker=W1), RunStopped(reason="drained")]) == ()


# -- sequence and conservation -----------------------------------------------------------------------------------------


def test_a_gap_in_the_numbers_is_found():
    history = records(READY)
    report = audit(history[:3] + history[4:])
    assert (report.findings[0].invariant, report.findings[0].seq) == (Invariant.SEQUENCE, 4)


def test_time_that_goes_back_is_found():
    report = audit([Record(0, 5.0, started()), Record(1, 4.0, FINISHED)])
    assert [found.invariant for found in report.findings] == [Invariant.SEQUENCE]


def test_a_sample_issued_twice_is_found():
    assert (Invariant.CONSERVATION, 2, (A.id,)) in breaches([*PAIR, issued([A])])
    assert (Invariant.CONSERVATION, 1, (A.id,)) in breaches([started(), issued([A, A])])


@pytest.mark.parametrize(
    "event",
    [
        Leased(request=AUDIT.id, attempt=1, worker=W1),
        released(AUDIT),
        result(AUDIT.id),
        Dropped(request=AUDIT.id, reason="x"),
        Reopened(request=AUDIT.id, reason="x"),
        stepped(0, [AUDIT], 0),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_sample_that_was_never_issued_is_found(event):
    assert (Invariant.CONSERVATION, 2, (AUDIT.id,)) in breaches([*PAIR, event])


def test_a_drop_without_a_reason_is_found():
    assert breaches([*PAIR, Dropped(request=A.id, reason="")]) == [(Invariant.CONSERVATION, 2, (A.id,))]


def test_a_sample_lost_on_the_way_is_found_at_the_finish():
    history = [*PAIR, *made(A), FINISHED]
    assert breaches(history) == [
        (Invariant.CONSERVATION, 4, (B.id,)),
        (Invariant.TRAINED_ONCE, 4, (A.id,)),
    ]


def test_an_evaluation_lost_on_the_way_is_found_at_the_finish():
    assert breaches([started(), issued([EVALUATION], ()), FINISHED]) == [(Invariant.CONSERVATION, 2, (EVALUATION.id,))]


# -- fence and edges ---------------------------------------------------------------------------------------------------


def test_two_live_leases_are_found():
    history = [*PAIR, Leased(request=A.id, attempt=1, worker=W1), Leased(request=A.id, attempt=2, worker=W2)]
    assert breaches(history) == [(Invariant.FENCE, 3, (A.id,))]


def test_an_attempt_number_used_again_is_found():
    history = [*PAIR, Leased(request=A.id, attempt=1, worker=W1), released(A)]
    assert breaches([*history, Leased(request=A.id, attempt=1, worker=W2)]) == [(Invariant.FENCE, 4, (A.id,))]


def test_a_result_of_a_stale_attempt_is_found():
    history = [*PAIR, Leased(request=A.id, attempt=1, worker=W1), released(A)]
    assert breaches([*history, result(A.id, 1, W1)]) == [(Invariant.FENCE, 4, (A.id,))]
    history += [Leased(request=A.id, attempt=2, worker=W2)]
    assert breaches([*history, result(A.id, 1, W1)]) == [(Invariant.FENCE, 5, (A.id,))]


def test_a_result_of_a_worker_that_does_not_hold_the_lease_is_found():
    history = [*PAIR, Leased(request=A.id, attempt=1, worker=W1), result(A.id, 1, W2)]
    assert breaches(history) == [(Invariant.FENCE, 3, (A.id,))]


def test_a_release_of_an_attempt_that_is_not_live_is_found():
    assert breaches([*PAIR, released(A)]) == [(Invariant.FENCE, 2, (A.id,))]


def test_a_lease_that_skips_steps_without_a_commit_is_found():
    history = [*PAIR, Leased(request=A.id, attempt=1, worker=W1), released(A, step=4)]
    assert breaches([*history, Leased(request=A.id, attempt=2, worker=W2, step=6)]) == [(Invariant.FENCE, 4, (A.id,))]


def test_a_sample_accepted_twice_is_found():
    assert breaches([*READY, result(A.id)]) == [(Invariant.EDGES, 6, (A.id,))]


@pytest.mark.parametrize(
    "event",
    [
        Leased(request=A.id, attempt=2, worker=W1),
        released(A),
        result(A.id),
        Dropped(request=A.id, reason="x"),
        Reopened(request=A.id, reason="x"),
    ],
    ids=lambda event: type(event).__name__,
)
@pytest.mark.parametrize("end", [[Dropped(request=A.id, reason="x")], TRAINED[2:]], ids=["dropped", "trained"])
def test_any_event_of_a_sample_after_its_end_is_found(event, end):
    history = [*PAIR, *end, event]
    assert (Invariant.EDGES, len(history) - 1, (A.id,)) in breaches(history)


def test_a_queued_sample_that_is_reopened_is_found():
    assert breaches([*PAIR, Reopened(request=A.id, reason="x")]) == [(Invariant.EDGES, 2, (A.id,))]


# -- tensors, weights, workers -----------------------------------------------------------------------------------------


def test_a_sample_made_again_with_other_tensors_is_found_in_deterministic_mode():
    history = [*READY, Reopened(request=A.id, reason="x"), *made(A, attempt=2, payload="other")]
    assert breaches(history) == [(Invariant.SAME_LATENT, 8, (A.id,))]
    assert findings(history, Bounds(bit_exact=False)) == ()


def test_a_result_of_other_weights_than_the_published_ones_is_found():
    assert breaches([*PAIR, *made(A, digest="other")]) == [(Invariant.WEIGHTS, 3, (A.id,))]
    assert breaches([*PAIR, published(0, 0, "adapter-0"), *made(A)]) == [(Invariant.WEIGHTS, 4, (A.id,))]


def test_a_result_of_weights_that_were_never_published_is_found():
    early = wanted(0, 0, iteration=3, version=3)
    assert breaches([started(), issued([early]), *made(early, digest="digest-3")]) == [
        (Invariant.WEIGHTS, 3, (early.id,))
    ]


def test_a_version_published_again_with_other_bytes_is_found_unless_its_steps_were_undone():
    history = [*TRAINED, published(1, 1)]
    assert breaches([*history, published(1, 1, "other")]) == [(Invariant.WEIGHTS, 8, ())]
    again = [Restored(step=0, reason="x"), stepped(0, [A, B], 1), published(1, 1, "other")]
    assert findings([*history, *again]) == ()


def test_a_lease_to_a_lost_worker_is_found():
    history = [*PAIR, WorkerLost(worker=W1, cause="killed"), Leased(request=A.id, attempt=1, worker=W1)]
    assert breaches(history) == [(Invariant.NOTICE, 3, (A.id,))]


@pytest.mark.parametrize(
    ("kind", "seconds", "found"),
    [(NoticeKind.IMMINENT, 0.5, True), (NoticeKind.IMMINENT, 30.0, False), (NoticeKind.ADVISORY, 0.5, False)],
)
def test_a_lease_after_the_deadline_of_a_notice_is_found(kind, seconds, found):
    history = [
        *PAIR,
        NoticeGiven(worker=W1, kind=kind, seconds=seconds),
        Leased(request=A.id, attempt=1, worker=W1),
    ]
    assert breaches(history) == ([(Invariant.NOTICE, 3, (A.id,))] if found else [])


@pytest.mark.parametrize(
    "ends", [NoticeWithdrawn(worker=W1), NoticeGiven(worker=W1, kind=NoticeKind.ADVISORY, seconds=None)]
)
def test_a_lease_after_the_deadline_of_a_notice_that_is_no_longer_in_force_is_none(ends):
    history = [
        *PAIR,
        NoticeGiven(worker=W1, kind=NoticeKind.IMMINENT, seconds=0.5),
        ends,
        Leased(request=A.id, attempt=1, worker=W1),
    ]
    assert breaches(history) == []


def test_a_loss_after_a_withdrawn_notice_counts_as_one_without_notice():
    history = [
        *PAIR,
        NoticeGiven(worker=W1, kind=NoticeKind.IMMINENT, seconds=60.0),
        NoticeWithdrawn(worker=W1),
        WorkerLost(worker=W1, cause="killed"),
    ]
    assert audit(records(history)).workers_lost_noticed == 0


@pytest.mark.parametrize(
    "check", [IterationDone(iteration=0, rollout_s=1, train_s=1, reward=0), RunStopped(reason="drained")]
)
def test_a_lease_that_was_never_taken_back_from_a_lost_worker_is_found(check):
    history = [*PAIR, Leased(request=A.id, attempt=1, worker=W1), WorkerLost(worker=W1, cause="killed"), check]
    assert breaches(history) == [(Invariant.NOTICE, 4, (A.id,))]


def test_a_worker_busy_for_longer_than_its_life_is_found_once():
    def worked(start, end):
        return Worked(worker=W1, activity=Activity.ROLLOUT, start=start, end=end)

    early = [Record(0, 0.0, started())]
    fine = [worked(0.0, 10.0), worked(10.0, 20.0)]
    assert audit(early + [Record(1 + i, 50.0, event) for i, event in enumerate(fine)]).clean
    doubled = [*fine, worked(0.0, 10.0), worked(0.0, 10.0)]
    report = audit(early + [Record(1 + i, 50.0, event) for i, event in enumerate(doubled)])
    assert [(found.invariant, found.seq) for found in report.findings] == [(Invariant.TIME, 3)]


@pytest.mark.parametrize(("start", "end"), [(5.0, 4.0), (0.0, 99.0)])
def test_a_span_that_ends_before_it_starts_or_in_the_future_is_found(start, end):
    span = Worked(worker=W1, activity=Activity.TRAIN, start=start, end=end)
    assert breaches([started(), span]) == [(Invariant.TIME, 1, ())]


# -- limits and progress -----------------------------------------------------------------------------------------------


def test_too_many_attempts_are_found_once():
    history = [*PAIR]
    for attempt in range(1, 6):
        history += [Leased(request=A.id, attempt=attempt, worker=W1), released(A, attempt)]
    assert breaches(history, Bounds(max_attempts=3)) == [(Invariant.LIMITS, 8, (A.id,))]


def test_more_redone_steps_than_a_commit_interval_are_found():
    history = [*PAIR, Leased(request=A.id, attempt=1, worker=W1), released(A, redone=4)]
    assert findings(history, Bounds(commit_every=4)) == ()
    assert breaches(history, Bounds(commit_every=3)) == [(Invariant.LIMITS, 3, (A.id,))]


def test_a_standstill_beyond_the_bound_is_found():
    assert findings(TRAINED, Bounds(max_step_gap_s=6.0)) == ()
    assert breaches(TRAINED, Bounds(max_step_gap_s=5.0)) == [(Invariant.PROGRESS, 6, ())]
    stopped = Record(7, 99.0, FINISHED)
    found = audit([*records(TRAINED), stopped], Bounds(max_step_gap_s=50.0)).findings
    assert [(finding.invariant, finding.seq) for finding in found] == [(Invariant.PROGRESS, 7)]


# -- the report --------------------------------------------------------------------------------------------------------


def test_the_report_locates_each_finding_and_is_bounded():
    sentences = audit(records([*TRAINED, stepped(1, [A, B], 1)])).sentences()
    assert "NOT CLEAN: 2 findings." in sentences
    assert f"record 7, trained_once: step 1 trains {A.id} again, after step 0." in sentences
    many = grid(1, 40)
    sentences = audit(records([started(), *[Leased(request=r.id, attempt=1, worker=W1) for r in many]])).sentences()
    assert sentences[-1] == "... and 20 more."


def test_the_base_digest_stands_for_version_zero_until_it_is_published():
    assert findings([*PAIR, *made(A, digest=BASE)]) == ()
