"""Flights on their way through an agent: stored before a commit goes on, and sent along with a grant."""

import msgspec
import pytest
from agent_stories import FIRST, Node, lease

from spotlight.core import messages as m
from spotlight.core.blobs import BlobKind, BlobRef
from spotlight.core.errors import Stopped


@pytest.mark.parametrize("kind", [m.Commit, m.HandBack])
def test_flight_is_stored_before_its_message_goes_on_without_the_bytes(kind):
    node, granted = Node(), lease(1)
    message = kind(request=granted.request.id, attempt=1, step=2)
    node.core.from_worker(FIRST, message, b"flight")
    worker, sent = node.sent[-1]
    assert (worker, node.store.get(sent.flight)) == (FIRST, b"flight")
    node.core.from_worker(FIRST, message, b"")
    assert node.sent[-1] == (FIRST, message)


def test_flights_of_a_grant_are_sent_along_and_one_that_cannot_be_read_has_failed():
    node = Node()
    parts = tuple(node.store.append(data) for data in (b"two,", b"four"))
    lost = BlobRef(kind=BlobKind.FLIGHT, path="lost", digest="", size=1)
    fresh, resumed, broken = (
        lease(1),
        msgspec.structs.replace(lease(2), step=4, flight=parts),
        msgspec.structs.replace(lease(3), step=2, flight=(lost,)),
    )
    node.grant(FIRST, fresh, resumed, broken)
    (grant,) = node.inbox[FIRST]
    assert grant.leases == (fresh, resumed)
    assert msgspec.msgpack.decode(node.blobs[FIRST][0]) == {resumed.request.id: b"two,four"}
    (failed,) = node.reported(m.Failed)
    assert (failed.request, failed.attempt) == (broken.request.id, broken.attempt)


def test_full_store_is_reported_and_the_commit_does_not_count(monkeypatch):
    node = Node()

    def full(data):
        raise Stopped("no space left; free some")

    monkeypatch.setattr(node.store, "append", full)
    node.core.from_worker(FIRST, m.Commit(request=lease(1).request.id, attempt=1, step=2), b"flight")
    assert node.sent[-1] == (None, m.StoreFailed(problem="no space left; free some"))
    assert not node.reported(m.Commit)
