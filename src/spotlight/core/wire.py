"""Frames on pipes and sockets: the msgpack of an Envelope and an optional blob, each with its length before it.

    | "SPL" | schema: 1 byte | message length: 4 | blob length: 8 | number: 8 | received: 8 | message | blob |

`number` and `received` belong to links that outlive their connections (`core/link.py`); others leave them 0.

Invariant: a frame is delivered whole or not at all. A peer that is killed in the middle of a frame counts as closed,
because preemption is normal; bytes that are not a valid frame raise WireError (tests/unit/test_wire.py). Numbers are
little-endian. Blobs are opaque: no process on the way decodes them.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from typing import NamedTuple, TypeAlias

import msgspec

from spotlight.core.errors import SpotlightError
from spotlight.core.events import SCHEMA
from spotlight.core.messages import Envelope

Blob: TypeAlias = bytes | bytearray | memoryview

MAGIC = b"SPL"
MESSAGE_LIMIT = 64 << 20
"""Largest message in bytes. The largest message names every sample of an optimizer step: about 1 MiB per thousand."""
BLOB_LIMIT = 4 << 30
"""Largest blob in bytes. Flights and results have megabytes; weights travel as files."""
STREAM_LIMIT = 4 << 20
"""Bytes that an asyncio reader buffers before it pauses the peer: a few results, so that bursts do not stall."""

_HEADER = struct.Struct("<3sBIQQQ")
_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Envelope)


class WireError(SpotlightError):
    """Bytes that are not a valid frame, or a frame above the limits."""


class Disconnected(WireError):
    """The peer closed the connection; sending failed."""


class _FrameHeader(NamedTuple):
    message: int
    blob: int
    number: int
    received: int


class Numbered(NamedTuple):
    """A frame with the numbers of its link."""

    envelope: Envelope
    blob: bytes
    number: int
    received: int


def write(writer: asyncio.StreamWriter, envelope: Envelope, blob: Blob = b"") -> None:
    """Queue one frame; `await writer.drain()` afterwards applies the peer's back-pressure."""
    write_numbered(writer, _ENCODER.encode(envelope), blob)


def encode(envelope: Envelope) -> bytes:
    return _ENCODER.encode(envelope)


def write_numbered(writer: asyncio.StreamWriter, message: bytes, blob: Blob, numbers: tuple[int, int] = (0, 0)) -> None:
    """Queue one encoded frame with its number and that of the last one received."""
    view = memoryview(blob).cast("B")
    writer.write(_header(len(message), len(view), *numbers) + message)
    if view:
        writer.write(view)


class FrameLimits(NamedTuple):
    """Largest message and largest blob in bytes."""

    message: int = MESSAGE_LIMIT
    blob: int = BLOB_LIMIT


LIMITS = FrameLimits()


async def read(reader: asyncio.StreamReader, limits: FrameLimits = LIMITS) -> tuple[Envelope, bytes] | None:
    """Return the next frame; None once the peer is gone."""
    frame = await read_numbered(reader, limits)
    return None if frame is None else (frame.envelope, frame.blob)


async def read_numbered(reader: asyncio.StreamReader, limits: FrameLimits = LIMITS) -> Numbered | None:
    """Return the next frame with its numbers; None once the peer is gone."""
    try:
        header = _parsed(await reader.readexactly(_HEADER.size), limits)
        message = await reader.readexactly(header.message)
        blob = await reader.readexactly(header.blob) if header.blob else b""
    except (asyncio.IncompleteReadError, OSError):
        # TLS reports a damaged end as an SSLError, which is no ConnectionError.
        return None
    return Numbered(_envelope(message), blob, header.number, header.received)


class Connection:
    """A worker's end of the socket to its agent; any thread may send, one thread receives."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self._socket = sock
        self._sending = threading.Lock()

    def send(self, envelope: Envelope, blob: Blob = b"") -> None:
        """Send one frame; return when the kernel has all of it. Raises Disconnected if the peer is gone."""
        message = _ENCODER.encode(envelope)
        view = memoryview(blob).cast("B")
        parts = [memoryview(_header(len(message), len(view)) + message), view]
        with self._sending:
            try:
                _send_all(self._socket, parts)
            except OSError as error:
                raise Disconnected(
                    f"{type(envelope.message).__name__} could not be sent ({error}), because the process at the other "
                    "end is gone; exit, this work is no longer needed."
                ) from error

    def recv(self) -> tuple[Envelope, bytes] | None:
        """Wait for the next frame and return it; None once the peer is gone."""
        header = self._exactly(_HEADER.size)
        if header is None:
            return None
        lengths = _parsed(header)
        message = self._exactly(lengths.message)
        blob = self._exactly(lengths.blob)
        return None if message is None or blob is None else (_envelope(message), blob)

    def close(self) -> None:
        """Close the socket; a thread that waits in `recv` wakes."""
        with contextlib.suppress(OSError):  # The peer may have closed first.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _exactly(self, count: int) -> bytes | None:
        """Receive `count` bytes, without a copy if the kernel returns them at once; None once the peer is gone."""
        parts: list[bytes] = []
        missing = count
        while missing:
            try:
                part = self._socket.recv(missing, socket.MSG_WAITALL)
            except OSError:
                return None
            if not part:
                return None
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _send_all(sock: socket.socket, parts: list[memoryview]) -> None:
    while parts:
        sent = sock.sendmsg(parts)
        while parts and sent >= len(parts[0]):
            sent -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][sent:]


def _header(message: int, blob: int, number: int = 0, received: int = 0) -> bytes:
    _check_limits(message, blob, LIMITS)
    return _HEADER.pack(MAGIC, SCHEMA, message, blob, number, received)


def _parsed(header: bytes, limits: FrameLimits = LIMITS) -> _FrameHeader:
    magic, schema, message, blob, number, received = _HEADER.unpack(header)
    if magic != MAGIC:
        raise WireError(
            f"a frame starts with {header[:4].hex(' ')}, which is not Spotlight's mark: the peer is another program, "
            "or a frame was cut; close the connection and check which process connects to this port."
        )
    if schema != SCHEMA:
        raise WireError(
            f"a frame has message schema {schema}, but this process uses {SCHEMA}, and mixed versions could disagree "
            "silently; install the same version of spotlight on both sides."
        )
    _check_limits(message, blob, limits)
    return _FrameHeader(message, blob, number, received)


def _check_limits(message: int, blob: int, limits: FrameLimits) -> None:
    if message > limits.message or blob > limits.blob:
        raise WireError(
            f"a frame has a message of {message} bytes and a blob of {blob}, but the limits are {limits.message} and "
            f"{limits.blob}, so that a damaged length cannot take all memory; send it in parts or as a file."
        )


def _envelope(message: bytes) -> Envelope:
    try:
        return _DECODER.decode(message)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        # Not all are MsgspecErrors: text may be no UTF-8, and arrays may be nested without end.
        raise WireError(
            f"a message of {len(message)} bytes cannot be decoded ({error}): the bytes are damaged, or the sender has "
            "another version; restart the sender with the controller's version."
        ) from error
