"""The group store of an agent and the workers that use it: waiting, refusing, bounds."""

import socket
import threading
from collections.abc import Iterator

import pytest
from store_thread import StoreThread

from spotlight.compute.parallel.store_client import AgentStore
from spotlight.compute.parallel.store_wire import FRAME_LIMIT, HEADER, StoreError, StoreLate, StoreRefused
from spotlight.core.crew_messages import GroupToken
from spotlight.core.types import NodeId
from spotlight.node.group_store import KEYS_LIMIT, OPEN_LIMIT

NOW, BEFORE = GroupToken(NodeId("spot-1.1"), 7), GroupToken(NodeId("spot-1.1"), 6)


@pytest.fixture
def server(tmp_path) -> Iterator[StoreThread]:
    started = StoreThread(tmp_path / "store")
    started.open(NOW)
    yield started
    started.stop()


def client(server: StoreThread, token: GroupToken = NOW, timeout_s: float = 30.0) -> AgentStore:
    return AgentStore(str(server.store.path), token, timeout_s)


def test_reader_gets_a_value_that_is_set_before_or_after_its_request(server):
    early, late = client(server), client(server)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(early.get("address/1")))
    reader.start()
    late.set("address/1", b"host:1")
    reader.join(10)
    assert found == [b"host:1"]
    assert client(server).get("address/1") == b"host:1"


def test_counters_add_up_over_clients(server):
    assert [client(server).add("joined", 2), client(server).add("joined", 3)] == [2, 5]


def test_check_looks_without_waiting(server):
    reading = client(server)
    assert not reading.check(["a"])
    client(server).set("a", b"1")
    assert reading.check(["a"])


def test_reader_of_a_key_that_is_never_written_gets_an_error_after_its_timeout(server):
    with pytest.raises(StoreLate, match=r"waited 0\.01 s for 'address/2'"):
        client(server, timeout_s=0.01).get("address/2")


def test_token_that_is_not_open_is_refused_for_reading_and_writing(server):
    zombie = client(server, BEFORE)
    for act in (lambda: zombie.set("a", b"1"), lambda: zombie.get("a"), lambda: zombie.add("n", 1)):
        with pytest.raises(StoreRefused, match=r"spot-1\.1#6 is refused"):
            act()
    assert server.store.tokens == (NOW,)


def test_closing_a_token_wakes_its_waiters_and_forgets_its_keys(server):
    client(server).set("a", b"1")
    waiting = client(server, timeout_s=60.0)
    refused: list[str] = []
    began = threading.Event()

    def wait() -> None:
        began.set()
        try:
            waiting.get("never")
        except StoreRefused as error:
            refused.append(str(error))

    reader = threading.Thread(target=wait)
    reader.start()
    began.wait(10)
    server.close(NOW)
    reader.join(30)
    assert len(refused) == 1
    assert server.store.keys == 0


def test_same_key_of_two_tokens_are_two_keys(server):
    other = GroupToken(NOW.node, 8)
    server.open(other)
    client(server).set("a", b"1")
    client(server, other).set("a", b"2")
    assert [client(server).get("a"), client(server, other).get("a")] == [b"1", b"2"]


def test_keys_and_tokens_are_bounded(server):
    writer = client(server)
    for number in range(KEYS_LIMIT):
        writer.set(f"key/{number}", b"")
    with pytest.raises(StoreRefused, match="has 1024 keys already"):
        writer.set("one more", b"")
    for epoch in range(8, 7 + OPEN_LIMIT):
        server.open(GroupToken(NOW.node, epoch))
    with pytest.raises(StoreError, match="64 of at most 64 are open"):
        server.open(GroupToken(NOW.node, 1000))


def test_client_that_sends_an_invalid_frame_is_disconnected_and_others_are_served(server):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as rude:
        rude.connect(str(server.store.path))
        rude.settimeout(10)
        rude.sendall(HEADER.pack(FRAME_LIMIT + 1))
        assert rude.recv(1) == b""
    client(server).set("a", b"1")


def test_store_that_is_not_there_or_gone_is_a_clear_error(server, tmp_path):
    with pytest.raises(StoreError, match="no group store listens at"):
        AgentStore(str(tmp_path / "nowhere"), NOW)
    orphan = client(server)
    orphan.set("a", b"1")
    server.stop()
    with pytest.raises(StoreError, match="lost its store"):
        orphan.get("b")
