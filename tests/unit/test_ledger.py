"""The ledger: leases, fences, acceptance once; issue, drop, reopen and cancel; previews."""

import pytest
from ledger_stories import BASE, W1, W2, EventLog, grid, make, result, train, wanted

from spotlight.control.ledger import InvariantBroken, Ledger, SampleState
from spotlight.control.ledger.entries import Batch
from spotlight.core.events import Accepted, Dropped, Issued, Leased, Refused, Released, StepCommitted
from spotlight.core.types import Frontier
from spotlight.core.work import RefusalReason, ReleaseReason, Work

A, B = wanted(0, 0), wanted(0, 1)


@pytest.fixture
def events() -> EventLog:
    return EventLog()


@pytest.fixture
def ledger(events: EventLog) -> Ledger:
    """One group of two is wanted."""
    ledger = Ledger(events.append)
    ledger.issue([A, B], [0])
    return ledger


# -- leases and fences -------------------------------------------------------------------------------------------------


def test_a_sample_goes_from_queued_to_trained(ledger, events):
    assert ledger.state(A.id) is SampleState.QUEUED
    assert ledger.lease(A.id, W1) == 1
    assert (ledger.state(A.id), ledger.holder(A.id), ledger.leases_of(W1)) == (SampleState.LEASED, W1, [A.id])
    assert ledger.accept(result(A.id), BASE) is None
    assert (ledger.state(A.id), ledger.holder(A.id), ledger.leases_of(W1)) == (SampleState.ACCEPTED, None, [])
    assert ledger.accepted(A.id) == result(A.id)
    assert not ledger.group_complete(0, 0)
    make(ledger, B)
    assert ledger.group_complete(0, 0)
    assert ledger.outstanding(0, Work.ROLLOUT) == 0
    event = train(ledger, [A, B], 0)
    assert ledger.counts()[SampleState.TRAINED] == 2
    assert (ledger.steps, ledger.step(0), ledger.frontier) == (1, event, Frontier(1))
    assert events.kinds() == [Issued, Leased, Accepted, Leased, Accepted, StepCommitted]


def test_a_leased_sample_is_not_leased_again(ledger):
    ledger.lease(A.id, W1)
    with pytest.raises(InvariantBroken, match="is leased and cannot be leased"):
        ledger.lease(A.id, W2)


def test_a_released_sample_gets_a_new_attempt_and_the_old_one_is_fenced(ledger, events):
    first = ledger.lease(A.id, W1)
    assert ledger.release(A.id, first, ReleaseReason.LOST, step=4, redone=2)
    assert events[-1] == Released(request=A.id, attempt=1, reason=ReleaseReason.LOST, step=4, redone=2)
    assert ledger.accept(result(A.id, first), BASE) is RefusalReason.FENCED
    assert ledger.lease(A.id, W2, step=4) == 2
    assert ledger.accept(result(A.id, first), BASE) is RefusalReason.FENCED
    assert events[-1] == Refused(request=A.id, attempt=1, worker=W1, reason=RefusalReason.FENCED)
    assert ledger.accept(result(A.id, 2, W2), BASE) is None


def test_a_release_by_an_old_attempt_changes_and_records_nothing(ledger, events):
    ledger.lease(A.id, W1)
    ledger.release(A.id, 1, ReleaseReason.SILENT)
    ledger.lease(A.id, W2)
    before = list(events)
    assert not ledger.release(A.id, 1, ReleaseReason.HANDED_BACK, step=9)
    assert not ledger.release(wanted(5).id, 1, ReleaseReason.LOST)
    assert events == before
    assert ledger.holder(A.id) == W2


def test_the_right_attempt_from_the_wrong_worker_is_fenced(ledger):
    ledger.lease(A.id, W1)
    assert ledger.accept(result(A.id, 1, W2), BASE) is RefusalReason.FENCED


def test_a_worker_that_got_its_sample_back_is_fenced_with_the_result_of_its_first_attempt(ledger):
    ledger.lease(A.id, W1)
    ledger.release(A.id, 1, ReleaseReason.RECALLED)
    ledger.lease(A.id, W1)
    assert ledger.accept(result(A.id, 1, W1), BASE) is RefusalReason.FENCED
    assert ledger.accept(result(A.id, 2, W1), BASE) is None


def test_a_repeated_result_is_a_duplicate_also_after_training(ledger, events):
    make(ledger, A, B)
    assert ledger.accept(result(A.id), BASE) is RefusalReason.DUPLICATE
    train(ledger, [A, B], 0)
    assert ledger.accept(result(A.id), BASE) is RefusalReason.DUPLICATE
    assert events.kinds().count(Accepted) == 2


def test_a_result_for_a_dropped_or_never_issued_sample_is_unknown(ledger, events):
    ledger.lease(A.id, W1)
    ledger.drop(A.id, "prompt withdrawn")
    assert ledger.accept(result(A.id), BASE) is RefusalReason.UNKNOWN
    assert ledger.accept(result(wanted(9).id), BASE) is RefusalReason.UNKNOWN
    assert events.kinds()[-2:] == [Refused, Refused]
    assert ledger.leases_of(W1) == []


@pytest.mark.parametrize("expected", ["published", None])
def test_a_result_of_other_weights_is_refused_and_made_again(ledger, events, expected):
    ledger.lease(A.id, W1, step=3)
    assert ledger.accept(result(A.id, digest="other"), expected) is RefusalReason.WRONG_WEIGHTS
    assert events[-2].reason is RefusalReason.WRONG_WEIGHTS
    assert events[-1] == Released(request=A.id, attempt=1, reason=ReleaseReason.FAILED, step=0, redone=13)
    assert ledger.state(A.id) is SampleState.QUEUED


def test_leases_of_a_worker_come_sorted_and_go_with_release_accept_and_drop(ledger):
    more = [wanted(1, seed, iteration=1) for seed in range(3)]
    ledger.issue(more, [1, 2])
    for request in (*reversed(more), B, A):
        ledger.lease(request.id, W1)
    assert ledger.leases_of(W1) == sorted(request.id for request in (A, B, *more))
    ledger.release(A.id, 1, ReleaseReason.RECALLED)
    ledger.accept(result(B.id), BASE)
    ledger.drop(more[0].id, "x")
    assert ledger.leases_of(W1) == [more[1].id, more[2].id]
    assert ledger.leases_of(W2) == []


def test_ledger_is_unchanged_if_its_event_cannot_be_recorded():
    def full_disk(event):
        if not isinstance(event, Issued):
            raise OSError("full")

    ledger = Ledger(full_disk)
    ledger.issue([A, B], [0])
    with pytest.raises(OSError, match="full"):
        ledger.lease(A.id, W1)
    with pytest.raises(OSError, match="full"):
        ledger.drop(A.id, "x")
    assert (ledger.state(A.id), ledger.attempt(A.id), ledger.leases_of(W1)) == (SampleState.QUEUED, 0, [])
    assert ledger.outstanding(0, Work.ROLLOUT) == 2


# -- issue, drop, reopen, cancel ---------------------------------------------------------------------------------------


def test_a_sample_is_issued_once(ledger):
    with pytest.raises(InvariantBroken, match="issued before"):
        ledger.issue([A], [0])
    with pytest.raises(InvariantBroken, match="twice in one call"):
        ledger.issue([wanted(1), wanted(1)])


@pytest.mark.parametrize(
    ("positions", "problem"),
    [([0, 1], "already"), ([2, 2], "already"), ([3], "no position")],
    ids=["claimed", "repeated", "too few"],
)
def test_a_place_in_the_prompt_order_is_issued_once(ledger, positions, problem):
    with pytest.raises(InvariantBroken, match=problem):
        ledger.issue(grid(2, 1, iteration=1), positions)


def test_a_trained_place_is_not_issued_again(ledger):
    make(ledger, A, B)
    train(ledger, [A, B], 0)
    with pytest.raises(InvariantBroken, match="already"):
        ledger.issue(grid(1, 1, iteration=1), [0])


def test_a_group_takes_more_samples_until_it_is_trained_or_dropped(ledger):
    ledger.issue([wanted(0, 2)])
    make(ledger, A, B, wanted(0, 2))
    train(ledger, [A, B, wanted(0, 2)], 0)
    with pytest.raises(InvariantBroken, match="takes no more samples"):
        ledger.issue([wanted(0, 3)])
    ledger.restore(0, "a rank died")
    ledger.issue([wanted(0, 3)], [0])
    assert not ledger.group_complete(0, 0)
    for seed in range(4):
        ledger.drop(wanted(0, seed).id, "x")
    with pytest.raises(InvariantBroken, match="takes no more samples"):
        ledger.issue([wanted(0, 4)])


def test_the_places_of_an_iteration_do_not_change(ledger):
    with pytest.raises(InvariantBroken, match="has positions"):
        ledger.issue([wanted(0, 2)], [5])
    with pytest.raises(InvariantBroken, match="no position"):
        ledger.issue([wanted(1, 0)])


def test_the_next_places_pass_over_what_is_issued_and_come_back_for_what_was_dropped(ledger):
    assert ledger.next_positions(2) == (1, 2)
    ledger.drop(A.id, "x")
    assert ledger.next_positions(2) == (1, 2)
    ledger.drop(B.id, "x")
    assert ledger.next_positions(2) == (0, 1)
    ledger.issue(grid(1, 1, iteration=1), [0])
    assert ledger.next_positions(1) == (1,)


def test_rollouts_without_places_cannot_be_trained():
    ledger = Ledger()
    ledger.issue([A])
    make(ledger, A)
    with pytest.raises(InvariantBroken, match="without a prompt position"):
        ledger.frontier_after([A.id])


def test_a_reduced_group_completes_without_the_dropped_sample(ledger):
    make(ledger, A)
    ledger.drop(B.id, "scoring failed")
    assert ledger.group_complete(0, 0)
    assert ledger.survivors(0, 0) == [A.id]
    assert ledger.iteration(0, Work.ROLLOUT) == [A, B]
    train(ledger, [A], 0)
    assert ledger.state(A.id) is SampleState.TRAINED


def test_a_reopened_sample_is_wanted_again_and_its_group_incomplete(ledger):
    make(ledger, A, B)
    ledger.reopen(B.id, "file damaged")
    assert not ledger.group_complete(0, 0)
    assert ledger.outstanding(0, Work.ROLLOUT) == 1
    assert ledger.queued() == [B]
    with pytest.raises(InvariantBroken, match="has no result"):
        ledger.accepted(B.id)
    make(ledger, B, worker=W2)
    assert ledger.accepted(B.id).attempt == 2


@pytest.mark.parametrize("act", ["drop", "reopen"])
def test_what_is_trained_or_dropped_stays(ledger, act):
    make(ledger, A, B)
    train(ledger, [A, B], 0)
    with pytest.raises(InvariantBroken):
        getattr(ledger, act)(A.id, "x")
    other = wanted(0, 0, iteration=1)
    ledger.issue([other], [1])
    ledger.drop(other.id, "x")
    with pytest.raises(InvariantBroken):
        getattr(ledger, act)(other.id, "x")


def test_cancel_drops_what_is_unfinished_of_one_kind(ledger, events):
    evaluations = [wanted(0, seed, work=Work.EVALUATION) for seed in range(3)]
    ledger.issue(evaluations)
    make(ledger, evaluations[1])
    ledger.lease(evaluations[2].id, W2)
    assert ledger.cancel(Work.EVALUATION) == [evaluations[0].id, evaluations[2].id]
    assert events.kinds()[-2:] == [Dropped, Dropped]
    assert ledger.leases_of(W2) == []
    assert ledger.outstanding(0, Work.EVALUATION) == 0
    assert ledger.outstanding(0, Work.ROLLOUT) == 2


def test_previews_pass_the_same_fences_and_are_not_recorded(events):
    previews = [wanted(0, seed, iteration=1, work=Work.PREVIEW) for seed in range(3)]
    ledger = Ledger(events.append)
    ledger.issue(previews)
    attempt = ledger.lease(previews[0].id, W1)
    ledger.release(previews[0].id, attempt, ReleaseReason.LOST)
    assert ledger.accept(result(previews[0].id, attempt), BASE) is RefusalReason.FENCED
    make(ledger, previews[0], worker=W2)
    ledger.lease(previews[1].id, W1)
    assert ledger.cancel(Work.PREVIEW) == [previews[1].id, previews[2].id]
    assert ledger.accept(result(previews[1].id), BASE) is RefusalReason.UNKNOWN
    assert ledger.accepted(previews[0].id).reward == 0.5
    assert events == []


def test_lease_that_ends_for_another_worker_than_its_holder_is_an_error_and_keeps_the_others_leases(monkeypatch):
    entries, add = [], Batch.add

    def noted(self, *of):
        entries.append(add(self, *of))
        return entries[-1]

    monkeypatch.setattr(Batch, "add", noted)
    ledger = Ledger()
    ledger.issue([A, B])
    ledger.lease(A.id, W1)
    ledger.lease(B.id, W2)
    entries[0].holder = W2
    with pytest.raises(KeyError, match=A.id):
        ledger.release(A.id, 1, ReleaseReason.FAILED)
    assert ledger.leases_of(W2) == [B.id]
