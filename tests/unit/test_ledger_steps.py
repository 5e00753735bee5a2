"""The ledger: steps of whole groups, restores, restarts, retirement, and the frontier."""

import pytest
from ledger_stories import BASE, W1, W2, EventLog, grid, make, result, started, stepped, train, wanted

from spotlight.control.ledger import InvariantBroken, Ledger, SampleState
from spotlight.control.ledger.audit import audit
from spotlight.control.ledger.frontier import advance, is_trained, next_positions
from spotlight.core.events import Dropped, Leased, Released
from spotlight.core.journal import Journal, JournalConfig, Sync, read
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


# -- steps -------------------------------------------------------------------------------------------------------------


def test_a_step_takes_whole_groups_only(ledger):
    make(ledger, A, B)
    with pytest.raises(InvariantBroken, match="a group is trained whole"):
        train(ledger, [A], 0)


def test_a_step_waits_for_every_sample_of_its_group(ledger):
    make(ledger, A)
    with pytest.raises(InvariantBroken, match="only a sample that is accepted"):
        train(ledger, [A, B], 0)


def test_a_step_trains_no_sample_twice(ledger):
    make(ledger, A, B)
    with pytest.raises(InvariantBroken, match="or one twice"):
        ledger.commit_step(stepped(0, [A, B, A], 1))
    train(ledger, [A, B], 0)
    with pytest.raises(InvariantBroken, match="is trained and cannot be trained"):
        ledger.commit_step(stepped(1, [A, B], 1))


@pytest.mark.parametrize("work", [Work.AUDIT, Work.EVALUATION, Work.PREVIEW])
def test_only_rollouts_are_trained(ledger, work):
    other = wanted(0, 5, work=work)
    ledger.issue([other])
    make(ledger, A, B, other)
    with pytest.raises(InvariantBroken, match="only rollouts of that iteration"):
        ledger.commit_step(stepped(0, [A, B, other], 1))


def test_a_group_of_two_versions_is_not_trained():
    mixed = [wanted(0, 0, iteration=1, version=0), wanted(0, 1, iteration=1, version=1)]
    ledger = Ledger()
    ledger.issue(mixed, [0])
    make(ledger, *mixed)
    with pytest.raises(InvariantBroken, match="one version"):
        train(ledger, mixed, 0, iteration=1)


@pytest.mark.parametrize("version", [0, 3])
def test_a_sample_two_versions_old_or_of_weights_to_come_is_not_trained(version):
    group = [wanted(0, 0, iteration=2, version=version)]
    ledger = Ledger()
    ledger.issue(group, [0])
    make(ledger, *group)
    with pytest.raises(InvariantBroken, match=rf"\[{2 - version}\] versions old"):
        train(ledger, group, 0, iteration=2)
    assert ledger.steps == 0


def test_groups_of_the_version_before_and_of_its_own_are_trained_in_one_step():
    stale, fresh = wanted(0, 0, iteration=1, version=0), wanted(1, 0, iteration=1, version=1)
    ledger = Ledger()
    ledger.issue([stale], [0, 1])
    ledger.issue([fresh], [0, 1])
    make(ledger, stale, fresh)
    train(ledger, [stale, fresh], 0, iteration=1)
    assert ledger.steps == 1


def test_weights_are_needed_until_their_last_rollout_or_audit_is_made():
    stale, fresh = wanted(0, 0, iteration=1, version=0), wanted(1, 0, iteration=1, version=1)
    audited = wanted(0, 1, iteration=1, version=0, work=Work.AUDIT)
    ledger = Ledger()
    ledger.issue([stale, fresh], [0, 1])
    ledger.issue([audited])
    assert ledger.needed_weights() == ledger.needed_weights(1) == [stale.weights, fresh.weights]
    assert ledger.needed_weights(0) == []
    make(ledger, stale)
    assert ledger.needed_weights() == [stale.weights, fresh.weights]
    make(ledger, audited)
    assert ledger.needed_weights() == [fresh.weights]


def test_a_group_of_one_version_made_with_two_sets_of_weights_is_not_trained(ledger):
    make(ledger, A)
    ledger.lease(B.id, W1)
    ledger.accept(result(B.id, digest="other bits"), "other bits")
    with pytest.raises(InvariantBroken, match="one set of weights"):
        train(ledger, [A, B], 0)


def test_steps_come_in_order(ledger):
    make(ledger, A, B)
    with pytest.raises(InvariantBroken, match="steps come in order"):
        train(ledger, [A, B], 1)


def test_a_step_with_a_wrong_frontier_is_refused_and_changes_nothing(ledger, events):
    make(ledger, A, B)
    before = list(events)
    with pytest.raises(InvariantBroken, match="has frontier"):
        ledger.commit_step(stepped(0, [A, B], 2))
    assert events == before
    assert (ledger.steps, ledger.frontier, ledger.state(A.id)) == (0, Frontier(), SampleState.ACCEPTED)


def test_the_frontier_follows_training_and_not_the_order_of_issue():
    ledger = Ledger()
    requests = grid(3, 1)
    ledger.issue(requests, [0, 1, 2])
    assert ledger.frontier == Frontier()
    make(ledger, *requests)
    train(ledger, [requests[2]], 0)
    assert ledger.frontier == Frontier(3, (0, 1))
    train(ledger, [requests[0]], 1)
    assert ledger.frontier == Frontier(3, (1,))
    assert ledger.next_positions(2) == (3, 4)


def test_a_restore_gives_the_samples_of_undone_steps_back_for_training_not_for_rollout(ledger):
    make(ledger, A, B)
    first = train(ledger, [A, B], 0)
    later = grid(1, 2, iteration=1)
    ledger.issue(later, [1])
    make(ledger, *later)
    train(ledger, later, 1, iteration=1)
    ledger.restore(1, "a rank died")
    assert (ledger.steps, ledger.frontier, ledger.step(0)) == (1, Frontier(1), first)
    assert [ledger.state(request.id) for request in later] == [SampleState.ACCEPTED] * 2
    assert ledger.queued() == []
    assert ledger.next_positions(1) == (2,)
    train(ledger, later, 1, iteration=1)
    ledger.restore(0, "and again")
    assert (ledger.steps, ledger.frontier) == (0, Frontier())
    assert ledger.counts()[SampleState.ACCEPTED] == 4
    with pytest.raises(InvariantBroken, match="cannot restore to step 1"):
        ledger.restore(1, "never happened")


# -- restart and retirement --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "redone"), [(0, 6), (4, 2), (6, 0), (8, 0)])
def test_a_restarted_controller_continues_from_the_journal_and_from_the_flights_that_are_left(
    ledger, events, left, redone
):
    ledger.lease(A.id, W1)
    ledger.release(A.id, 1, ReleaseReason.HANDED_BACK, step=6)
    ledger.lease(A.id, W2, step=6)
    make(ledger, B)
    again = EventLog(events)
    back = Ledger.replay(list(events), again.append)
    assert again == events
    assert (back.state(A.id), back.holder(A.id), back.attempt(A.id)) == (SampleState.LEASED, W2, 2)
    assert back.interrupt({A.id: left} if left else {}) == [A.id]
    assert again[-1] == Released(request=A.id, attempt=2, reason=ReleaseReason.RESTART, step=left, redone=redone)
    assert back.queued() == [A]
    assert back.accept(result(A.id, 2, W2), BASE) is RefusalReason.FENCED
    assert back.accepted(B.id) == ledger.accepted(B.id)


def test_what_the_journal_kept_on_disk_gives_the_same_ledger_and_a_clean_audit(tmp_path):
    with Journal.create(tmp_path, lambda: 0.0, JournalConfig(sync=Sync.NEVER)) as journal:
        journal.append(started())
        ledger = Ledger(journal.append)
        ledger.issue([A, B], [0])
        make(ledger, A, B)
        train(ledger, [A, B], 0)
    back = Ledger.replay(record.event for record in read(tmp_path))
    assert (back.counts(), back.step(0), back.accepted(A.id)) == (
        ledger.counts(),
        ledger.step(0),
        ledger.accepted(A.id),
    )
    assert audit(read(tmp_path)).clean


@pytest.mark.parametrize(
    "lie",
    [
        Leased(request=A.id, attempt=2, worker=W1),
        Released(request=A.id, attempt=1, reason=ReleaseReason.LOST),
        result(A.id),
        stepped(0, [A, B], 1),
        Dropped(request=wanted(7).id, reason="x"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_journal_that_contradicts_itself_is_not_replayed(ledger, events, lie):
    with pytest.raises(InvariantBroken):
        Ledger.replay([*events, lie])


def test_retired_iterations_are_forgotten_and_still_counted(ledger):
    evaluation = wanted(0, 5, work=Work.EVALUATION)
    ledger.issue([evaluation])
    make(ledger, A, B, evaluation)
    train(ledger, [A, B], 0)
    later = grid(1, 2, iteration=1)
    ledger.issue(later, [1])
    make(ledger, later[0])
    counts = ledger.counts()
    ledger.retire(1)
    assert ledger.counts() == counts
    assert [request.id in ledger for request in (A, B, evaluation, *later)] == [False, False, False, True, True]
    assert ledger.iteration(0, Work.ROLLOUT) == []
    assert ledger.accept(result(A.id), BASE) is RefusalReason.UNKNOWN
    with pytest.raises(InvariantBroken, match="issued before"):
        ledger.issue([A])
    make(ledger, later[1])
    train(ledger, later, 1, iteration=1)
    ledger.restore(1, "the newest checkpoint")
    assert ledger.frontier == Frontier(1)
    with pytest.raises(InvariantBroken, match="are retired"):
        ledger.restore(0, "too old")


# -- the frontier ------------------------------------------------------------------------------------------------------


def test_the_frontier_is_a_position_and_holes():
    frontier = advance(Frontier(), [0, 1, 4])
    assert frontier == Frontier(5, (2, 3))
    assert [is_trained(frontier, place) for place in (-1, 0, 2, 4, 5)] == [False, True, False, True, False]
    assert next_positions(frontier, 3, claimed={2}) == (3, 5, 6)
    assert advance(frontier, [3, 2]) == Frontier(5)


@pytest.mark.parametrize("place", [0, 4, -1])
def test_the_frontier_takes_no_place_twice_and_no_place_that_is_none(place):
    with pytest.raises(InvariantBroken, match=f"position {place} "):
        advance(Frontier(5, (2, 3)), [place])
