"""Frames: whole or not at all, over asyncio and over blocking sockets, from bytes that arrive in any pieces."""

import asyncio
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.core import wire
from spotlight.core.messages import Alive, Commit, Drain, Envelope, Progress, Result, Score
from spotlight.core.types import WorkerId
from spotlight.core.work import RequestId

WORKER = WorkerId("spot-1.3/0.2")
COMMIT = Envelope(WORKER, Commit(request=RequestId("rollout/0/1/2"), attempt=3, step=4))

envelopes = st.builds(
    Envelope,
    st.sampled_from([WORKER, None]),
    st.one_of(
        st.builds(Commit, request=st.text(max_size=40), attempt=st.integers(0, 9), step=st.integers(0, 99)),
        st.builds(
            Result,
            request=st.text(max_size=40),
            attempt=st.just(1),
            digest=st.text(max_size=64),
            steps=st.just(10),
            score=st.builds(Score, st.floats(allow_nan=False), st.dictionaries(st.text(), st.floats(0, 1), max_size=3)),
        ),
        st.builds(Alive, progress=st.lists(st.builds(Progress, st.text(), st.just(1), st.just(2))).map(tuple)),
    ),
)
frames = st.lists(st.tuples(envelopes, st.binary(max_size=3000)), min_size=1, max_size=4)


def encoded(*pairs: tuple[Envelope, bytes]) -> bytes:
    """The bytes that `write` puts on a stream."""

    class Sink:
        data = b""

        def write(self, part):
            self.data += bytes(part)

    sink = Sink()
    for envelope, blob in pairs:
        wire.write(sink, envelope, blob)
    return sink.data


def decoded(pieces: list[bytes]) -> list[tuple[Envelope, bytes]]:
    """The frames that `read` returns for bytes that arrive in these pieces before the peer is gone."""

    async def read_all():
        reader = asyncio.StreamReader(limit=wire.STREAM_LIMIT)

        async def feed():
            for piece in pieces:
                reader.feed_data(piece)
                await asyncio.sleep(0)
            reader.feed_eof()

        feeding = asyncio.create_task(feed())
        found = []
        while (frame := await wire.read(reader)) is not None:
            found.append(frame)
        await feeding
        return found

    return asyncio.run(read_all())


def over_a_socket(data: bytes) -> list[tuple[Envelope, bytes]]:
    """The frames that a worker's connection reads from these bytes."""
    here, there = socket.socketpair()
    with here, there:
        here.sendall(data)
        here.close()
        connection = wire.Connection(there)
        found = []
        while (frame := connection.recv()) is not None:
            found.append(frame)
        return found


@settings(max_examples=60)
@given(frames, st.integers(1, 700))
def test_frames_cut_into_any_pieces_arrive_whole_and_in_order(pairs, size):
    data = encoded(*pairs)
    assert decoded([data[start : start + size] for start in range(0, len(data), size)]) == pairs


@settings(max_examples=40)
@given(frames)
def test_blocking_side_reads_what_the_asyncio_side_writes(pairs):
    assert over_a_socket(encoded(*pairs)) == pairs


def test_peer_killed_at_any_byte_of_a_frame_leaves_only_the_frames_before_it():
    first, second = encoded((COMMIT, b"one")), encoded((COMMIT, b"two"))
    for cut in range(len(second)):
        assert decoded([first + second[:cut]]) == [(COMMIT, b"one")]
        assert over_a_socket(first + second[:cut]) == [(COMMIT, b"one")]


def test_50_mb_blob_crosses_in_both_directions_between_the_two_sides():
    blob = memoryview(bytearray(b"0123456789abcdef" * (50 * 1024 * 1024 // 16)))

    async def echo_server(sock: socket.socket):
        reader, writer = await asyncio.open_unix_connection(sock=sock, limit=wire.STREAM_LIMIT)
        envelope, received = await wire.read(reader)
        wire.write(writer, envelope, received)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    here, there = socket.socketpair()
    server = threading.Thread(target=asyncio.run, args=(echo_server(there),))
    server.start()
    connection = wire.Connection(here)
    connection.send(COMMIT, blob)
    envelope, returned = connection.recv()
    server.join()
    connection.close()
    assert envelope == COMMIT
    assert returned == blob


def test_blob_of_wide_items_is_counted_in_bytes():
    floats = memoryview(bytearray(32)).cast("f")
    assert decoded([encoded((COMMIT, floats))]) == [(COMMIT, bytes(32))]


def test_threads_that_send_at_once_do_not_mix_their_frames():
    here, there = socket.socketpair()
    sender, receiver = wire.Connection(here), wire.Connection(there)
    blobs = [bytes([number]) * 300_000 for number in range(8)]
    threads = [threading.Thread(target=sender.send, args=(COMMIT, blob)) for blob in blobs]
    for thread in threads:
        thread.start()
    received = [receiver.recv() for _ in blobs]
    for thread in threads:
        thread.join()
    assert sorted(blob for _, blob in received) == blobs
    sender.close()
    assert receiver.recv() is None
    receiver.close()


def test_send_to_a_peer_that_is_gone_raises():
    here, there = socket.socketpair()
    connection = wire.Connection(here)
    there.close()
    with pytest.raises(wire.Disconnected, match=r"Drain could not be sent .* exit"):
        connection.send(Envelope(None, Drain()))
    connection.close()


def test_close_wakes_the_thread_that_waits_for_a_frame():
    here, there = socket.socketpair()
    connection = wire.Connection(here)
    received = []
    waiting = threading.Thread(target=lambda: received.append(connection.recv()))
    waiting.start()
    connection.close()
    waiting.join(timeout=10)
    there.close()
    assert received == [None]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"GET / HTTP/1.1\r\nHost: controller\r\n\r\n", "not Spotlight's mark"),
        (b"SPL\xff" + bytes(28), "schema 255"),
        (encoded((COMMIT, b""))[:4] + b"\xff\xff\xff\xff" + bytes(24), "4294967295 bytes"),
        (encoded((COMMIT, b""))[:8] + b"\x00\x00\x00\x00\x00\x00\x01\x00" + bytes(16), "in parts or as a file"),
        (encoded((COMMIT, b"")).replace(b"attempt", b"attampt"), "cannot be decoded"),
        (encoded((COMMIT, b"")).replace(b"Commit", b"Comnit"), "cannot be decoded"),
    ],
    ids=["foreign", "schema", "message-length", "blob-length", "unknown-field", "unknown-message"],
)
def test_bytes_that_are_no_valid_frame_are_refused_with_a_sentence(data, sentence):
    with pytest.raises(wire.WireError, match=sentence):
        decoded([data])
    with pytest.raises(wire.WireError, match=sentence):
        over_a_socket(data)


def test_frame_over_the_limit_is_refused_before_it_is_sent(monkeypatch):
    monkeypatch.setattr(wire, "LIMITS", wire.FrameLimits(blob=100))
    here, there = socket.socketpair()
    with there:
        connection = wire.Connection(here)
        with pytest.raises(wire.WireError, match="blob of 101"):
            connection.send(COMMIT, bytes(101))
        connection.close()
        assert there.recv(1) == b""
