"""Serves blobs to other machines: the run's files on the reserved node, or a spot node's copies of weights.

    python -m spotlight.node.blob_server      settings as a line of JSON on stdin; prints its port; ends with stdin

One process beside the controller serves the run's folder (`HomeFiles`), so that the controller touches no tensor;
agents of other machines serve their copies of weights to one another (`node/shared_files.py`).

Invariant (tests/unit/test_blob_server.py): a client without the token learns nothing but that; nothing outside of the
folders listed here is read or written; bytes whose checksum differs are neither stored nor returned.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import os
import ssl
import sys
import threading
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeAlias

from spotlight import __version__
from spotlight.core import blob_messages as b
from spotlight.core import messages as m
from spotlight.core import wire
from spotlight.core.blobs import BlobKind, BlobRef
from spotlight.core.errors import SpotlightError, Stopped
from spotlight.core.events import SCHEMA
from spotlight.core.run_files import BASE, BASE_FOLDER, EMBEDDINGS
from spotlight.core.tls import Identity
from spotlight.core.types import NodeId
from spotlight.node.blob_store import BlobStore
from spotlight.node.newborn import die_with_parent
from spotlight.node.unloading import BlobError

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
MOST_LISTED = 10_000
MOST_CONNECTIONS = 4096
MOST_PUT = 1 << 30
"""Largest blob in bytes that a client may store; a 1280x1280 sample with four window steps has 16 MB."""
OPENING, REQUESTS = wire.FrameLimits(4096, 0), wire.FrameLimits(1 << 16, MOST_PUT)
"""Limits of a client's first frame, and of its requests."""
MOST_READ = 64 << 20
"""Largest part of a file in one reply."""
READABLE = ("weights", EMBEDDINGS, BASE_FOLDER, BASE)
"""Files of the run's folder that other machines may read, beside blobs."""


class Serves(Protocol):
    """What a server gives out, and takes."""

    async def answer(self, node: NodeId, request: m.AnyMessage, blob: bytes) -> tuple[m.AnyMessage, bytes]:
        """The reply to one request; raises SpotlightError to refuse it."""


@dataclass
class _NodeStore:
    """The store, as one node uses it."""

    files: BlobStore
    appending: threading.Lock = field(default_factory=threading.Lock)
    newest: dict[str, BlobRef] = field(default_factory=dict)
    """The newest append by the id of its request, which may be repeated: the appends of a node follow one another."""


class HomeFiles:
    """The files of a run's folder, read and written by threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stores: dict[NodeId, _NodeStore] = {}

    async def answer(self, node: NodeId, request: m.AnyMessage, blob: bytes) -> tuple[m.AnyMessage, bytes]:
        return await asyncio.to_thread(self._answer, node, request, blob)

    def _answer(self, node: NodeId, request: m.AnyMessage, blob: bytes) -> tuple[m.AnyMessage, bytes]:
        match request:
            case b.PutBlob(kind=kind, name=name, crc=crc):
                _check(blob, crc)
                return b.BlobStored(ref=self._put(node, kind, _checked_name(kind, name), blob)), b""
            case b.AppendBlob(id=request_id, crc=crc):
                _check(blob, crc)
                return b.BlobStored(ref=self._append(node, request_id, blob)), b""
            case b.ReadBlob(ref=ref):
                data = self._store_of(node).files.get(_checked_ref(ref))
                return b.BlobBytes(crc=zlib.crc32(data), total=ref.size), data
            case b.ReadFile(path=path, offset=offset, size=size):
                return read_part(self._folder / _checked_path(path), offset, size)
            case b.ListFiles(path=path):
                return b.FilesListed(paths=self._listed(_checked_path(path))), b""
            case _:
                raise BlobError(f"{type(request).__name__} is not for a blob server; send requests for blobs alone.")

    def _put(self, node: NodeId, kind: BlobKind, name: str, blob: bytes) -> BlobRef:
        """Store a new file; a repeated request finds its own, and nothing replaces another one."""
        store = self._store_of(node).files
        try:
            earlier = (self._folder / kind.value / name).read_bytes()
        except OSError:
            return store.put(kind, name, blob)
        if earlier != blob:
            raise BlobError(f"{kind.value}/{name} is stored already, with other bytes; samples do not change.")
        return store.ref(kind, name, blob)

    def _append(self, node: NodeId, request_id: str, blob: bytes) -> BlobRef:
        """Store a part; a repeated request, whose reply was lost, finds its own, also while the first is written."""
        of_node = self._store_of(node)
        with of_node.appending:
            if request_id not in of_node.newest:
                try:
                    of_node.newest = {request_id: of_node.files.append(blob)}
                finally:
                    # Not left open: nodes come and go, and none says that it stores nothing more.
                    of_node.files.close()
            return of_node.newest[request_id]

    def _listed(self, path: str) -> tuple[str, ...]:
        place = self._folder / path
        files = [place] if place.is_file() else sorted(each for each in place.rglob("*") if each.is_file())
        return tuple(str(file.relative_to(self._folder)) for file in files[:MOST_LISTED])

    def _store_of(self, node: NodeId) -> _NodeStore:
        known = self._stores.get(node)
        return known or self._stores.setdefault(node, _NodeStore(BlobStore(self._folder, _checked_part(node))))


Accepts: TypeAlias = Callable[[NodeId, str], bool]
"""Whether a client that says to be this node has the right token."""


def token_of(secret: str, node: NodeId) -> str:
    """The token with which a node proves itself to the run's server, which knows the secret."""
    return hmac.new(secret.encode(), node.encode(), "sha256").hexdigest()


def proves_itself(secret: str) -> Accepts:
    return lambda node, token: hmac.compare_digest(token.encode(), token_of(secret, node).encode())


def knows(secret: str) -> Accepts:
    """All nodes of a run share the secret."""
    return lambda node, token: hmac.compare_digest(token.encode(), secret.encode())


class BlobServer:
    """Accepts clients with a token, and answers their requests one after the other."""

    def __init__(self, files: Serves, accepts: Accepts, tls: ssl.SSLContext | None) -> None:
        """Without `tls` it may listen on loopback only."""
        self._files = files
        self._accepts = accepts
        self._tls = tls
        self._server: asyncio.AbstractServer | None = None
        self._count = 0

    async def listen(self, host: str, port: int = 0) -> int:
        """Start; returns the port, which is free to choose for 0."""
        assert self._tls is not None or host.startswith("127."), "a server without TLS is for loopback"
        self._server = await asyncio.start_server(
            self._serve, host, port, ssl=self._tls, limit=wire.STREAM_LIMIT,
            ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_S,
        )  # fmt: skip
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        try:
            if self._count <= MOST_CONNECTIONS:
                await self._answers(reader, writer)
        except (ConnectionError, TimeoutError, asyncio.CancelledError):
            pass
        except wire.WireError as error:
            log.warning("a client of the blob server is dropped: %s", error)
        finally:
            self._count -= 1
            writer.close()

    async def _answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await asyncio.wait_for(wire.read(reader, OPENING), HANDSHAKE_S)
        if first is None:
            return
        opening = first[0].message
        problem = self._problem(opening)
        wire.write(writer, m.Envelope(None, m.Rejected(reason=problem) if problem else b.BlobsOpen()))
        await writer.drain()
        if problem:
            log.warning("%s", problem)
            return
        assert isinstance(opening, b.OpenBlobs)
        while (frame := await wire.read(reader, REQUESTS)) is not None:
            reply, blob = await self._reply(opening.node, frame[0].message, frame[1])
            wire.write(writer, m.Envelope(None, reply), blob)
            await writer.drain()

    async def _reply(self, node: NodeId, request: m.AnyMessage, blob: bytes) -> tuple[m.AnyMessage, bytes]:
        try:
            return await self._files.answer(node, request, blob)
        except Stopped as error:
            return b.BlobRefused(problem=str(error), is_full=True), b""
        except SpotlightError as error:
            return b.BlobRefused(problem=str(error)), b""

    def _problem(self, opening: m.AnyMessage) -> str:
        if not isinstance(opening, b.OpenBlobs) or not self._accepts(opening.node, opening.token):
            return "a client of the blob server has a wrong token, so it is not of this run; join the run first."
        if (opening.schema, opening.code) != (SCHEMA, __version__):
            return (
                f"node {opening.node} runs spotlight {opening.code} (messages {opening.schema}), but this run is on "
                f"{__version__} (messages {SCHEMA}); install the same one."
            )
        return ""


def read_part(path: Path, offset: int, size: int) -> tuple[b.BlobBytes, bytes]:
    """A part of a file, with its checksum and the size of the whole."""
    if not 0 <= size <= MOST_READ or offset < 0:
        raise BlobError(
            f"{size} bytes from byte {offset} are requested, but a reply has at most {MOST_READ}; request less."
        )
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            total, data = os.fstat(file).st_size, os.pread(file, size, offset)
        finally:
            os.close(file)
    except OSError as error:
        raise BlobError(f"{path.name} cannot be read ({error.strerror}); it is not there, or no longer.") from error
    return b.BlobBytes(crc=zlib.crc32(data), total=total), data


def _check(blob: bytes, crc: int) -> None:
    if zlib.crc32(blob) != crc:
        raise BlobError(f"{len(blob)} bytes were damaged on their way to the store; send them again.")


def _checked_name(kind: BlobKind, name: str) -> str:
    if kind is BlobKind.FLIGHT:
        raise BlobError("flights are appended, not put.")
    _checked_path(f"{kind.value}/{name}", (kind.value,))
    return name


def _checked_ref(ref: BlobRef) -> BlobRef:
    _checked_path(ref.path, tuple(kind.value for kind in BlobKind))
    if ref.size > MOST_PUT:
        raise BlobError(f"{ref.path} would have {ref.size} bytes, more than any blob; request what was stored.")
    return ref


def _checked_path(path: str, folders: tuple[str, ...] = READABLE) -> str:
    """Refuse paths that lead out of the folders."""
    parts = PurePosixPath(path).parts
    if not parts or parts[0] not in folders or path != "/".join(parts) or any(part in ("..", ".") for part in parts):
        raise BlobError(f"'{path[:200]}' is no file that other machines may use; request files of the run alone.")
    for part in parts:
        _checked_part(part)
    return path


def _checked_part(part: str) -> str:
    if "/" in part or "\0" in part or part.startswith(".") or len(part) > 200:
        raise BlobError(f"'{part[:200]}' is no name of a file of a run.")
    return part


async def serve_home(settings: dict[str, str], ready: Callable[[int], Awaitable[None]]) -> None:
    """Serve a run's folder until cancelled."""
    tls = Identity.load(Path(settings["identity"])).server_context() if settings["identity"] else None
    server = BlobServer(HomeFiles(Path(settings["folder"])), proves_itself(settings["secret"]), tls)
    await ready(await server.listen(settings["host"], int(settings["port"])))
    await asyncio.Event().wait()


def main() -> None:
    die_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    settings = json.loads(sys.stdin.readline())

    async def ready(port: int) -> None:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()

    async def until_stdin_ends() -> None:
        serving = asyncio.create_task(serve_home(settings, ready))
        ending = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        os._exit(0)

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(until_stdin_ends())


if __name__ == "__main__":
    main()
