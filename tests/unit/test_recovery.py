"""Flights after a restart of the controller: the newest one that is complete, undamaged, allowed and of the right
weights."""

import msgspec
import pytest
from ledger_stories import BASE, W1, W2, make, wanted

from spotlight.control.ledger import Ledger
from spotlight.control.recovery import Records, StoredPart, recover
from spotlight.core.blobs import BlobKind, BlobRef
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import ReleaseReason, Request, WeightsId

A, B = wanted(0, 0), wanted(0, 1)
PUBLISHED = {A.weights: BASE}
HOLDERS = {(request.id, attempt): worker for request in (A, B) for attempt, worker in ((1, W1), (2, W2))}


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.issue([A, B], [0])
    return ledger


def part(
    step: int, on: StoredPart | None = None, attempt: int = 1, digest: str = BASE, request: Request = A
) -> StoredPart:
    """A part that builds on another one."""
    seal = f"{request.id} {attempt}:{step}" + (f" on {on.ref.digest}" if on is not None else "")
    ref = BlobRef(BlobKind.FLIGHT, f"flights/{seal}", seal, size=1)
    since, base = (on.step, on.ref.digest) if on is not None else (0, "")
    writer = node_of(HOLDERS[request.id, attempt]) if request in (A, B) else NodeId("spot-9.1")
    return StoredPart(request.id, attempt, step, since, base, digest, ref, writer)


def node_of(worker: WorkerId) -> NodeId:
    return NodeId(worker.partition("/")[0])


def found(
    ledger: Ledger,
    *stored: StoredPart,
    damaged: tuple[StoredPart, ...] = (),
    published: dict[WeightsId, str] = PUBLISHED,
) -> list[StoredPart]:
    """The recovered flight of A."""
    spoiled = {each.ref for each in damaged}
    known = Records(HOLDERS, published)
    return list(recover(stored, ledger, known, lambda ref: ref not in spoiled).get(A.id, ()))


TWO = part(2)
FOUR = part(4, TWO)
SIX = part(6, FOUR)


def test_newest_commit_of_the_live_attempt_comes_back_with_all_parts_that_it_builds_on(ledger: Ledger) -> None:
    ledger.lease(A.id, W1)
    other = part(8, request=B)
    assert found(ledger, SIX, other, TWO, FOUR) == [TWO, FOUR, SIX]


def test_commit_that_was_overtaken_is_left_out(ledger: Ledger) -> None:
    ledger.lease(A.id, W1)
    eight = part(8, FOUR)
    assert found(ledger, TWO, FOUR, SIX, eight) == [TWO, FOUR, eight]


def test_damaged_or_missing_part_leaves_the_newest_commit_that_does_not_need_it(ledger: Ledger) -> None:
    ledger.lease(A.id, W1)
    assert found(ledger, TWO, FOUR, SIX, damaged=(SIX,)) == [TWO, FOUR]
    assert found(ledger, TWO, FOUR, SIX, damaged=(FOUR,)) == [TWO]
    assert found(ledger, TWO, SIX) == [TWO]
    assert found(ledger, FOUR, SIX) == []


def test_part_that_is_stored_twice_counts_if_one_copy_is_undamaged(ledger: Ledger) -> None:
    """A hand-back right after a commit has the same bytes."""
    ledger.lease(A.id, W1)
    copy = TWO._replace(ref=msgspec.structs.replace(TWO.ref, path="flights/copy"))
    for stored in ((TWO, copy, FOUR), (copy, TWO, FOUR)):
        assert found(ledger, *stored, damaged=(TWO,)) == [copy, FOUR]
        assert found(ledger, *stored, damaged=(copy,)) == [TWO, FOUR]


def test_parts_of_two_attempts_are_never_joined_unless_one_continued_the_other(ledger: Ledger) -> None:
    """Attempt 1 went on to step 8 after it was fenced, while attempt 2 took the same steps again from step 4."""
    ledger.lease(A.id, W1)
    ledger.release(A.id, 1, ReleaseReason.SILENT, step=4)
    ledger.lease(A.id, W2, step=4)
    stale, again = part(8, SIX), part(6, FOUR, attempt=2)
    assert found(ledger, TWO, FOUR, SIX, stale, again) == [TWO, FOUR, again]
    assert found(ledger, TWO, FOUR, SIX, stale, again, damaged=(again,)) == [TWO, FOUR]
    # Its own part 6 is gone, and that of the other attempt is no replacement.
    assert found(ledger, TWO, FOUR, SIX, part(8, again, attempt=2)) == [TWO, FOUR]


def test_waiting_sample_continues_from_the_step_that_was_handed_over_and_not_from_a_later_one(ledger: Ledger) -> None:
    ledger.lease(A.id, W1)
    ledger.release(A.id, 1, ReleaseReason.LOST, step=4)
    assert found(ledger, TWO, FOUR, SIX) == [TWO, FOUR]


def test_flight_that_was_given_up_after_a_failure_does_not_come_back(ledger: Ledger) -> None:
    ledger.lease(A.id, W1)
    ledger.release(A.id, 1, ReleaseReason.FAILED, step=0)
    assert found(ledger, TWO, FOUR, SIX) == []
    ledger.lease(A.id, W1)
    assert found(ledger, TWO, FOUR, SIX) == []
    assert found(ledger, TWO, FOUR, SIX, part(2, attempt=2)) == [part(2, attempt=2)]


def test_flight_that_was_given_up_does_not_come_back_when_the_later_one_is_damaged(ledger: Ledger) -> None:
    """Two restarts in a row: the first one records the step of the later flight, the second one finds it damaged."""
    ledger.lease(A.id, W1)
    ledger.release(A.id, 1, ReleaseReason.FAILED)
    ledger.lease(A.id, W2)
    later = part(6, attempt=2)
    assert found(ledger, TWO, FOUR, later) == [later]
    ledger.interrupt({A.id: 6})
    assert found(ledger, TWO, FOUR, later) == [later]
    assert found(ledger, TWO, FOUR, later, damaged=(later,)) == []


def test_flight_of_other_weights_than_are_published_does_not_come_back(ledger: Ledger) -> None:
    ledger.lease(A.id, W1)
    other = part(8, digest="others")
    assert found(ledger, TWO, other) == [TWO]
    assert found(ledger, other) == []
    # The publication decides later.
    assert found(ledger, other, published={}) == [other]


def test_sample_that_is_finished_dropped_or_unknown_has_no_flight(ledger: Ledger) -> None:
    make(ledger, A)
    assert found(ledger, TWO) == []
    ledger.reopen(A.id, "its tensors were lost")
    assert found(ledger, TWO) == [], "it starts over"
    ledger.drop(A.id, "given up")
    assert found(ledger, TWO) == []
    assert recover([part(2, request=wanted(9, 9))], ledger, Records(HOLDERS, PUBLISHED), lambda ref: True) == {}


def test_part_in_the_file_of_a_node_that_did_not_hold_its_attempt_does_not_count(ledger: Ledger) -> None:
    """A node on another machine may write anything, but not into the files of others."""
    ledger.lease(A.id, W1)
    forged = part(8)._replace(writer=node_of(W2))
    assert found(ledger, TWO, FOUR, forged) == [TWO, FOUR]
    assert found(ledger, TWO, FOUR._replace(writer=node_of(W2)), SIX) == [TWO]
    assert found(ledger, TWO._replace(attempt=7), FOUR) == []


@pytest.mark.parametrize("step", [-1, 0, 10, 11])
def test_impossible_step_is_no_flight(ledger: Ledger, step: int) -> None:
    ledger.lease(A.id, W1)
    assert found(ledger, part(step)) == []


def test_part_that_builds_on_itself_or_on_a_later_one_is_no_flight(ledger: Ledger) -> None:
    ledger.lease(A.id, W1)
    circular = TWO._replace(since=2, base=TWO.ref.digest)
    assert found(ledger, circular) == []
    assert found(ledger, SIX, part(4, SIX)) == []
