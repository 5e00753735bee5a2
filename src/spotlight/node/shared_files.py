"""A node's copies of weights, which it serves to the next node of the chain while they are still arriving.

    announced --begin--> ARRIVING --finished--> WHOLE --dropped--> gone
                            `--failed--> gone

Each node reads from its predecessor, so the run's server sends a file once, whatever the number of nodes; a node passes
a part on as soon as it has it, so the chain takes little longer than one copy.

Invariant (tests/unit/test_shared_files.py): only bytes that have arrived are served; a reader of bytes that do not
come is refused after PATIENCE_S, and reads them elsewhere.
"""

import asyncio
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path

from spotlight.core import blob_messages as b
from spotlight.core import messages as m
from spotlight.core.types import NodeId
from spotlight.node.blob_server import MOST_READ
from spotlight.node.unloading import BlobError

PATIENCE_S = 5.0
"""Wait for bytes that are still arriving, and for a file that is not announced here yet."""


@dataclass(eq=False)
class _Shared:
    file: int
    total: int
    have: int = 0
    grew: asyncio.Event = field(default_factory=asyncio.Event)


class SharedFiles:
    """Files by their path in the run's folder."""

    def __init__(self) -> None:
        self._files: dict[str, _Shared] = {}
        self._begun = asyncio.Event()

    def begin(self, path: str, copy: Path, total: int) -> None:
        """The file arrives in `copy`, from its first byte on; its descriptor outlives its name."""
        self.dropped(path)
        self._files[path] = _Shared(os.open(copy, os.O_RDONLY), total)
        self._begun.set()
        self._begun = asyncio.Event()

    def has(self, path: str, count: int) -> None:
        """The first `count` bytes are there."""
        shared = self._files.get(path)
        if shared is not None:
            shared.have = count
            shared.grew.set()
            shared.grew = asyncio.Event()

    def dropped(self, path: str) -> None:
        """Serve the file no longer."""
        shared = self._files.pop(path, None)
        if shared is not None:
            os.close(shared.file)
            shared.file = -1
            shared.grew.set()

    async def answer(self, node: NodeId, request: m.AnyMessage, blob: bytes) -> tuple[m.AnyMessage, bytes]:
        if not isinstance(request, b.ReadFile) or not 0 <= request.size <= MOST_READ or request.offset < 0:
            raise BlobError("this node serves weights alone; use the run's own server.")
        try:
            async with asyncio.timeout(PATIENCE_S):
                shared = await self._arrived(request)
        except TimeoutError as error:
            raise BlobError(f"{request.path} does not arrive at this node; use the run's own server.") from error
        data = os.pread(shared.file, min(request.size, max(0, shared.total - request.offset)), request.offset)
        return b.BlobBytes(crc=zlib.crc32(data), total=shared.total), data

    async def _arrived(self, request: b.ReadFile) -> _Shared:
        while True:
            shared = self._files.get(request.path)
            if shared is None:
                await self._begun.wait()
            elif shared.have >= min(request.offset + request.size, shared.total):
                return shared
            else:
                await shared.grew.wait()
