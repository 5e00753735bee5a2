"""Flights on their way through an agent: stored before a commit goes on, and sent along with a grant."""

import msgspec
import pytest
from agent_stories import FIRST, Node, lease

from spotlight.core import messages as m
from spotlight.core.blobs import BlobKind, BlobRef
from spotlight.core.errors import Stopped
from spotlight.node.unloading import Fetched


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


def test_commits_of_a_step_are_relayed_one_after_the_other_and_a_hand_back_among_them_ends_its_lease():
    node = Node()
    node.hello(FIRST)
    granted = lease(1)
    node.grant(FIRST, granted)
    flight = node.store.append(b"flight")
    messages = (
        m.Commit(request=lease(2).request.id, attempt=1, step=2, flight=flight),
        m.HandBack(request=granted.request.id, attempt=granted.attempt, step=2, flight=flight),
    )
    node.core.from_worker(FIRST, m.Commits(messages=messages))
    assert node.sent[-2:] == [(FIRST, message) for message in messages]
    node.core.from_worker(FIRST, m.Result(request=granted.request.id, attempt=granted.attempt, digest="", steps=2))
    assert not node.reported(m.Result), "a result after the hand-back is dropped"


def test_full_store_is_reported_and_the_commit_does_not_count(monkeypatch):
    node = Node()

    def full(data):
        raise Stopped("no space left; free some")

    monkeypatch.setattr(node.store, "append", full)
    node.core.from_worker(FIRST, m.Commit(request=lease(1).request.id, attempt=1, step=2), b"flight")
    assert node.sent[-1] == (None, m.StoreFailed(problem="no space left; free some"))
    assert not node.reported(m.Commit)


class FarStore:
    """Answers when the test says so."""

    def __init__(self):
        self.parts, self.reads = [], []

    def needs_fetch(self, grant):
        return True

    def append(self, data, done):
        self.parts.append((data, done))

    def fetch(self, grant, done):
        self.reads.append((grant, done))

    def stored(self, number):
        data, done = self.parts[number]
        done(BlobRef(kind=BlobKind.FLIGHT, path=data.decode(), digest="", size=len(data)))


def commit(step, request=None):
    return m.Commit(request=request or lease(1).request.id, attempt=1, step=step)


def steps(node):
    return [message.step for _, message in node.sent if isinstance(message, m.Commit | m.HandBack)]


def test_commit_leaves_the_node_only_after_another_machine_has_stored_its_flight():
    store = FarStore()
    node = Node(far=store)
    node.core.from_worker(FIRST, commit(2), b"two")
    node.core.from_worker(FIRST, m.Alive())
    assert steps(node) == []
    assert node.reported(m.Alive), "other messages do not wait"
    store.stored(0)
    assert node.reported(m.Commit)[0].flight.path == "two"


def test_commits_and_hand_backs_of_a_worker_stay_in_order():
    store = FarStore()
    node = Node(far=store)
    node.core.from_worker(FIRST, commit(2), b"two")
    node.core.from_worker(FIRST, commit(4), b"four")
    node.core.from_worker(FIRST, m.HandBack(request=lease(1).request.id, attempt=1, step=5))
    store.stored(1)
    assert steps(node) == []
    store.stored(0)
    assert steps(node) == [2, 4, 5]


def test_end_of_a_worker_is_reported_after_its_last_flight_is_stored():
    store = FarStore()
    node = Node(far=store)
    node.hello(FIRST)
    node.core.from_worker(FIRST, commit(2), b"two")
    node.core.ended(FIRST, "killed", was_killed=True)
    assert not node.reported(m.Gone)
    store.stored(0)
    assert [type(message) for _, message in node.sent[-2:]] == [m.Commit, m.Gone]


def test_messages_behind_a_grant_wait_for_its_flights_and_stay_in_order():
    store = FarStore()
    node = Node(far=store)
    part = BlobRef(kind=BlobKind.FLIGHT, path="two", digest="", size=3)
    resumed = msgspec.structs.replace(lease(1), step=2, flight=(part,))
    node.grant(FIRST, resumed)
    node.core.from_controller(FIRST, m.Recall(requests=(resumed.request.id,)), b"")
    assert node.inbox[FIRST] == []
    (_, done) = store.reads[0]
    done(Fetched(b"flights", ()))
    assert [type(message) for message in node.inbox[FIRST]] == [m.Grant, m.Recall]
    assert node.blobs[FIRST][0] == b"flights"


def test_flights_that_arrive_for_a_worker_that_is_gone_are_dropped():
    store = FarStore()
    node = Node(far=store)
    node.hello(FIRST)
    part = BlobRef(kind=BlobKind.FLIGHT, path="two", digest="", size=3)
    node.grant(FIRST, msgspec.structs.replace(lease(1), step=2, flight=(part,)))
    node.core.ended(FIRST, "killed", was_killed=True)
    sent = len(node.sent)
    store.reads[0][1](Fetched(b"", [(lease(1), "lost")]))
    assert len(node.sent) == sent, "the loss of the worker has ended its leases already"
