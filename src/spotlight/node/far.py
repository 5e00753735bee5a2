"""A node on another machine than the run's folder: its stores and files are behind the run's blob server.

`FarStore` holds flights and samples, `FarFiles` brings files of the run's folder here: published weights, from the
node before this one in the chain as far as it has them, embeddings and base weights from the run's server.

Invariants (tests/unit/test_far.py): flights are stored in the order of their commits; a store that does not answer is
tried again until the node's link is over; a file under its final name is whole.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from spotlight.core import messages as m
from spotlight.core.blobs import BlobKind, BlobRef, BlobSource
from spotlight.core.errors import EnvironmentProblem, SpotlightError, Stopped
from spotlight.core.types import NodeId
from spotlight.node.blob_client import BlobAddress, BlobClient
from spotlight.node.shared_files import SharedFiles
from spotlight.node.unloading import BlobError, Fetched, flights_of

log = logging.getLogger(__name__)

PATIENCE_S = 24 * 3600.0
"""A store that does not answer is tried again for this long: the grace of the node's link ends the node much sooner."""
SOURCE_S = 3.0
"""Time limit to connect to another node, before the run's server is used."""
Result = TypeVar("Result")


class FarStore:
    """`FlightStore` and, for threads, `Puts` and `Reads`, over connections of their own for writing and for reading."""

    def __init__(self, server: BlobAddress, node: NodeId, ensure: Callable[[m.Grant], Awaitable[None]]) -> None:
        """`ensure` brings the other files that a grant needs."""
        self._loop = asyncio.get_running_loop()
        self._flights, self._samples, self._reads = (BlobClient(server, node, PATIENCE_S) for _ in range(3))
        self._ensure = ensure
        self.refused: Callable[[str], None] = log.error
        """Called with the reason when the server does not take this node's bytes; its agent ends the node."""
        self._queue: asyncio.Queue[tuple[bytes, Callable[[BlobRef | Stopped], None]]] = asyncio.Queue()
        self._tasks = {asyncio.create_task(self._store_flights())}

    # -- for the agent's core ------------------------------------------------------------------------------------------

    def needs_fetch(self, grant: m.Grant) -> bool:
        return True

    def append(self, data: bytes, done: Callable[[BlobRef | Stopped], None]) -> None:
        self._queue.put_nowait((data, done))

    def fetch(self, grant: m.Grant, done: Callable[[Fetched], None]) -> None:
        task = asyncio.create_task(self._fetch(grant, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- for threads of the agent --------------------------------------------------------------------------------------

    def put(self, kind: BlobKind, name: str, data: bytes) -> BlobRef:
        return self._wait(self._samples.put(kind, name, data))

    def get(self, ref: BlobRef) -> bytes:
        return self._wait(self._reads.get(ref))

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # -- tasks ---------------------------------------------------------------------------------------------------------

    async def _store_flights(self) -> None:
        while True:
            data, done = await self._queue.get()
            try:
                stored: BlobRef | Stopped = await self._flights.append(data)
            except Stopped as error:
                stored = error
            except BlobError as error:
                self.refused(f"nothing that this node makes can be stored: {error}")
                return
            done(stored)

    async def _fetch(self, grant: m.Grant, done: Callable[[Fetched], None]) -> None:
        missing = ""
        try:
            await self._ensure(grant)
        except SpotlightError as error:
            missing = str(error)
        if missing:
            done(Fetched(b"", [(lease, missing) for lease in grant.leases]))
            return
        found: dict[BlobRef, bytes | BlobError] = {}
        for ref in [ref for lease in grant.leases for ref in lease.flight]:
            try:
                found[ref] = await self._reads.get(ref)
            except BlobError as error:
                found[ref] = error
        done(flights_of(grant, _Known(found)))


class _Known:
    """Blobs that were read before."""

    def __init__(self, found: dict[BlobRef, bytes | BlobError]) -> None:
        self._found = found

    def get(self, ref: BlobRef) -> bytes:
        data = self._found[ref]
        if isinstance(data, BlobError):
            raise data
        return data


class FarFiles:
    """Brings files of the run's folder to this machine; `shared` passes weights on to the next node."""

    def __init__(self, server: BlobAddress, node: NodeId, shared: SharedFiles, peer_token: str) -> None:
        """`peer_token` is the proof for servers of other nodes."""
        self._peer_token = peer_token
        self._node = node
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._home = BlobClient(server, node, PATIENCE_S)

    # -- for threads of the weight cache -------------------------------------------------------------------------------

    def size(self, path: str) -> int:
        return self._wait(self._home.size(path))

    def copy(self, path: str, target: Path, sources: Sequence[BlobSource]) -> None:
        self._wait(self.bring(path, target, sources))

    def drop(self, path: str) -> None:
        """The copy of this file is deleted."""
        self._loop.call_soon_threadsafe(self._shared.dropped, path)

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except BlobError as error:
            raise EnvironmentProblem(str(error)) from error

    # -- for the agent -------------------------------------------------------------------------------------------------

    async def listed(self, path: str) -> tuple[str, ...]:
        """Paths of the run's files under this one."""
        return await self._home.listed(path)

    async def ensure(self, path: str, target: Path) -> None:
        """Bring a file that does not change, unless it is here."""
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            await self._home.fetch(path, part)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)

    async def bring(self, path: str, target: Path, sources: Sequence[BlobSource]) -> None:
        """Bring weights from the first source that has them; each next one continues where the last stopped."""
        total = await self._home.size(path)
        target.touch()
        self._shared.begin(path, target, total)
        servers = [BlobAddress(source.address, source.fingerprint, self._peer_token) for source in sources]
        try:
            for server in servers:
                client = BlobClient(server, self._node, SOURCE_S)
                try:
                    await self._continued(client, path, target)
                    return
                except BlobError as error:
                    log.info("%s; the rest comes from the run's server", error)
                finally:
                    client.close()
            await self._continued(self._home, path, target)
        except BaseException:
            self._shared.dropped(path)
            raise

    async def _continued(self, client: BlobClient, path: str, target: Path) -> None:
        def arrived(count: int) -> None:
            self._shared.has(path, count)

        total = await client.fetch(path, target, target.stat().st_size, arrived)
        self._shared.has(path, total)
