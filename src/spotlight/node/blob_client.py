"""An agent's connection to a blob server: requests in order, repeated on a new connection when one breaks.

    CLOSED --request--> CONNECTING --opened--> OPEN --broken, or bytes damaged--> CLOSED
                            `--refused--> the request fails

Invariant (tests/unit/test_blob_server.py): a request ends with its reply, or with BlobError; bytes that arrive have the
checksum that the sender computed; what is stored by a request that had to be repeated is stored once.
"""

import asyncio
import contextlib
import os
import secrets
import zlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from spotlight import __version__
from spotlight.core import blob_messages as b
from spotlight.core import messages as m
from spotlight.core import tls, wire
from spotlight.core.blobs import BlobKind, BlobRef
from spotlight.core.errors import Stopped
from spotlight.core.events import SCHEMA
from spotlight.core.types import NodeId
from spotlight.node.unloading import BlobError

CONNECT_S = 10.0
ANSWER_S = 60.0
"""Time limit for one reply: the largest part of a file over a slow connection."""
PAUSE_FIRST_S, PAUSE_MOST_S = 0.1, 2.0
PART = 4 << 20
"""Bytes per request for a part of a file."""
WINDOW = 8
"""Parts of a file requested before the first has arrived, so that latency does not limit the rate."""


class BlobAddress(NamedTuple):
    """A blob server, and what a client needs to use it."""

    address: str
    """host:port"""
    fingerprint: str
    """Of its certificate; empty: no TLS, for loopback."""
    token: str


Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def _ignore(count: int) -> None:
    pass


class _Broken(Exception):
    """The connection is of no more use."""


class BlobClient:
    """One connection, which is opened when it is needed; one request or file at a time."""

    def __init__(self, server: BlobAddress, node: NodeId, patience_s: float) -> None:
        """`patience_s` bounds a request over all attempts."""
        self._server = server
        self._node = node
        self._patience_s = patience_s
        self._streams: Streams | None = None
        self._lock = asyncio.Lock()
        self._id = secrets.token_hex(8)
        """Differs from that of every other client, also of the same node."""
        self._appends = 0

    async def put(self, kind: BlobKind, name: str, data: bytes) -> BlobRef:
        """Store bytes; raises Stopped if the server's disk is full."""
        return await self._store(b.PutBlob(kind=kind, name=name, crc=zlib.crc32(data)), data)

    async def append(self, data: bytes) -> BlobRef:
        """Store a part of a flight; raises Stopped if the server's disk is full."""
        self._appends += 1
        return await self._store(b.AppendBlob(id=f"{self._id}-{self._appends}", crc=zlib.crc32(data)), data)

    async def get(self, ref: BlobRef) -> bytes:
        reply, data = await self._request(b.ReadBlob(ref=ref))
        if not isinstance(reply, b.BlobBytes) or len(data) != ref.size:
            raise BlobError(f"{ref.path} has lost bytes from {ref.offset} on; the sample is made again.")
        return data

    async def size(self, path: str) -> int:
        """Size of a file of the run."""
        reply, _ = await self._request(b.ReadFile(path=path, offset=0, size=0))
        assert isinstance(reply, b.BlobBytes)
        return reply.total

    async def listed(self, path: str) -> tuple[str, ...]:
        """Paths of the files under this one."""
        reply, _ = await self._request(b.ListFiles(path=path))
        assert isinstance(reply, b.FilesListed)
        return reply.paths

    async def fetch(self, path: str, target: Path, begin: int = 0, arrived: Callable[[int], None] = _ignore) -> int:
        """Append a file of the run to `target`, from byte `begin` on; return its size.

        `arrived` is called with the number of bytes that are there. Raises BlobError if the file cannot be had;
        `target` then holds a prefix of it, which another server may continue.
        """
        async with self._lock:
            try:
                reader, writer = await self._opened()
                return await self._fetch(path, target, begin, (reader, writer), arrived)
            except (_Broken, OSError, TimeoutError, wire.WireError, tls.WrongFingerprint) as error:
                self._drop()
                raise BlobError(f"{path} stopped on its way from {self._server.address} ({error}).") from error
            except BaseException:
                # A cancelled transfer leaves replies on the way, which belong to no later request.
                self._drop()
                raise

    def close(self) -> None:
        self._drop()

    async def _store(self, request: m.AnyMessage, data: bytes) -> BlobRef:
        reply, _ = await self._request(request, data)
        assert isinstance(reply, b.BlobStored)
        return reply.ref

    async def _request(self, request: m.AnyMessage, data: bytes = b"") -> tuple[m.AnyMessage, bytes]:
        """The reply; after a broken connection the request is repeated on another one."""
        deadline, pause_s = asyncio.get_running_loop().time() + self._patience_s, PAUSE_FIRST_S
        while True:
            async with self._lock:
                try:
                    reader, writer = await self._opened()
                    wire.write(writer, m.Envelope(None, request), data)
                    await writer.drain()
                    return await self._reply(reader)
                except (_Broken, OSError, TimeoutError, wire.WireError) as error:
                    self._drop()
                    if asyncio.get_running_loop().time() + pause_s > deadline:
                        raise BlobError(
                            f"the run's store at {self._server.address} does not answer ({error or 'too late'}); check "
                            "the network between the machines."
                        ) from error
                except (BlobError, Stopped):
                    raise
                except BaseException:
                    self._drop()
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MOST_S)

    async def _reply(self, reader: asyncio.StreamReader) -> tuple[m.AnyMessage, bytes]:
        frame = await asyncio.wait_for(wire.read(reader), ANSWER_S)
        if frame is None:
            raise _Broken("the connection ended")
        reply, data = frame[0].message, frame[1]
        match reply:
            case b.BlobRefused(problem=problem, is_full=True):
                raise Stopped(problem)
            case b.BlobRefused(problem=problem):
                raise BlobError(problem)
            case b.BlobBytes(crc=crc) if zlib.crc32(data) != crc:
                raise _Broken("bytes were damaged on the way")
            case b.BlobBytes() | b.BlobStored() | b.FilesListed():
                return reply, data
            case _:
                raise _Broken(f"the server sent {type(reply).__name__}")

    async def _fetch(
        self, path: str, target: Path, begin: int, streams: Streams, arrived: Callable[[int], None]
    ) -> int:
        """Parts are requested ahead of those that arrive."""
        reader, writer = streams

        def request(offset: int) -> None:
            wire.write(writer, m.Envelope(None, b.ReadFile(path=path, offset=offset, size=PART)))
            requested.append(offset)

        requested: deque[int] = deque()
        request(begin)
        total: int | None = None
        with target.open("r+b" if begin else "wb") as file:
            while requested:
                offset = requested.popleft()
                reply, data = await self._reply(reader)
                assert isinstance(reply, b.BlobBytes)
                total = reply.total
                await asyncio.to_thread(_write_at, file.fileno(), offset, data)
                expected = max(0, min(PART, total - offset))
                if len(data) != expected:
                    raise _Broken(f"byte {offset} on: {len(data)} of {expected} bytes came")
                arrived(offset + len(data))
                following = (requested[-1] if requested else offset) + PART
                while len(requested) < WINDOW and following < total:
                    request(following)
                    following += PART
                await writer.drain()
        assert total is not None
        return total

    async def _opened(self) -> Streams:
        if self._streams is None:
            self._streams = await asyncio.wait_for(self._open(), CONNECT_S)
        return self._streams

    async def _open(self) -> Streams:
        server = self._server
        host, _, port = server.address.rpartition(":")
        if server.fingerprint:
            streams = await tls.open_pinned(host, int(port), server.fingerprint, wire.STREAM_LIMIT)
        else:
            streams = await asyncio.open_connection(host, int(port), limit=wire.STREAM_LIMIT)
        opening = b.OpenBlobs(schema=SCHEMA, code=__version__, node=self._node, token=server.token)
        wire.write(streams[1], m.Envelope(None, opening))
        frame = await wire.read(streams[0])
        match frame:
            case (m.Envelope(message=b.BlobsOpen()), _):
                return streams
            case (m.Envelope(message=m.Rejected(reason=reason)), _):
                streams[1].close()
                raise BlobError(reason)
            case _:
                streams[1].close()
                raise _Broken("the server closed the connection before its reply")

    def _drop(self) -> None:
        if self._streams is not None:
            with contextlib.suppress(Exception):
                self._streams[1].transport.abort()
            self._streams = None


def _write_at(file: int, offset: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, offset)
        rest, offset = rest[written:], offset + written
