"""One worker's process and socket, driven by the agent from its spawn to its end.

Invariant (tests/processes/test_pool.py): `ended` is called once per worker, after all its messages are received and its
process is reaped.
"""

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from spotlight.core import wire
from spotlight.core.messages import AnyMessage, Envelope
from spotlight.core.types import WorkerId
from spotlight.node.agent_core import AgentCore
from spotlight.node.launch import AgentLaunch
from spotlight.node.nursery_client import Child, NurseryClient

EXIT_GRACE_S = 2.0
"""Wait for the end of a worker's process after it closed its socket."""
LAST_MESSAGES_S = 5.0
"""Time limit for relaying a dead worker's last messages; a longer one would delay the report of its death."""


class WorkerProcess:
    """Waits for the worker's messages and its end."""

    def __init__(self, worker: WorkerId, core: AgentCore, flush: Callable[[], Awaitable[None]]) -> None:
        """`flush` waits until the controller has room for more messages."""
        self._worker = worker
        self._core = core
        self._flush = flush
        self._child: Child | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.is_relaying = False
        """Whether a message waits for the controller: a slow controller does not make the worker silent."""

    def send(self, message: AnyMessage, blob: bytes) -> None:
        """Send without waiting: a worker that does not read becomes silent and is killed."""
        if self._writer is not None and not self._writer.is_closing():
            wire.write(self._writer, Envelope(self._worker, message), blob)

    async def run(self, slot: int, launch: AgentLaunch, nursery: NurseryClient) -> None:
        """Run the worker to its end."""
        here, there = socket.socketpair()
        with there:
            log = Path(launch.logs) / f"{self._worker.replace('/', '-')}.log"
            settings = launch.for_worker(slot).to_bytes()
            child = self._child = await nursery.spawn(self._worker, there, settings, log)
        reader, self._writer = await asyncio.open_unix_connection(sock=here, limit=wire.STREAM_LIMIT)
        self._core.born(self._worker, self.send)
        try:
            cause = await self._until_end(child, reader, nursery)
        finally:
            self._writer.close()
        was_killed = child.exited.result() == -signal.SIGKILL
        self._core.ended(self._worker, cause, was_killed)

    async def kill(self, nursery: NurseryClient) -> None:
        if self._child is not None:
            await nursery.kill(self._child)

    async def _until_end(self, child: Child, reader: asyncio.StreamReader, nursery: NurseryClient) -> str:
        """Wait for the end of the process or of its socket, then for the last messages; return the cause."""
        relaying = asyncio.create_task(self._relay(reader))
        ends: tuple[asyncio.Future[Any], ...] = (relaying, child.exited)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        cause = relaying.result() if relaying.done() else ""
        self._core.dying(self._worker, cause or "its process ended")
        if not cause:
            await asyncio.wait({child.exited}, timeout=EXIT_GRACE_S)
        await nursery.kill(child)
        status = await child.exited
        await asyncio.wait({relaying}, timeout=LAST_MESSAGES_S)
        relaying.cancel()
        return cause or _cause(status)

    async def _relay(self, reader: asyncio.StreamReader) -> str:
        """Relay messages until the socket ends; return what is wrong with it, or ''."""
        try:
            while (frame := await wire.read(reader)) is not None:
                self._core.from_worker(self._worker, frame[0].message, frame[1])
                self.is_relaying = True
                await self._flush()
                self.is_relaying = False
        except wire.WireError as error:
            return str(error)
        return ""


def _cause(status: int) -> str:
    if status == 0:
        return "exited"
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
