"""One slot of a node: runs one worker at a time, and starts the next incarnation when one ends.

    BOOTING --boot_s--> STARTING --Spawned--> ALIVE --end of process or socket, silence--> GONE --back-off--> STARTING
       `--draining--> (the slot is empty)                                                    `--draining--> (empty)

Invariant (tests/processes/test_pool.py): `gone` is called once per worker, after all its messages are relayed and its
process is reaped, and before the next worker starts. A hung worker is killed, so a hang becomes a death.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from spotlight.core import wire
from spotlight.core.messages import AnyMessage, Drain, Envelope, Load
from spotlight.core.types import WorkerId
from spotlight.node.launch import AgentLaunch
from spotlight.node.nursery_client import Child, NurseryClient

EXIT_GRACE_S = 2.0
"""Wait for the end of a worker's process after it closed its socket."""
SECOND_CHANCE = 0.1
"""Extra wait before a silent worker is killed, as a share of the allowed silence."""
LAST_MESSAGES_S = 5.0
"""Time limit for relaying a dead worker's last messages; a longer one would delay the report of its death."""
BACKOFF_FIRST_S = 0.1
BACKOFF_MOST_S = 10.0
"""The pause doubles per failed worker, so that a worker that cannot start does not use up the node's CPU."""
STABLE_S = 20.0
"""A worker that ran this long did not fail to start."""


class SlotActions(Protocol):
    """The agent's methods that a slot calls."""

    async def receive(self, worker: WorkerId, message: AnyMessage, blob: bytes) -> None: ...

    def started(self) -> None:
        """A worker's first message is relayed."""

    def died(self, worker: WorkerId, why: str) -> None:
        """Report the death at once, because its crew waits for it; `gone` follows when its messages are relayed."""

    async def gone(self, worker: WorkerId, cause: str) -> None: ...

    def current_loads(self) -> Sequence[Load]:
        """Announcements that a new worker needs."""


@dataclass
class _WorkerProcess:
    worker: WorkerId
    child: Child
    writer: asyncio.StreamWriter
    last_message_at: float
    has_started: bool = False
    is_relaying: bool = False
    """A message of the worker is being relayed: a slow controller does not make the worker silent."""
    kill_cause: str = ""


class Slot:
    """Waits for the end of its worker; the nursery, the socket or the clock wakes it."""

    def __init__(self, number: int, launch: AgentLaunch, nursery: NurseryClient, agent: SlotActions) -> None:
        self._number = number
        self._launch = launch
        self._nursery = nursery
        self._agent = agent
        self._incarnation = 0
        self._running: _WorkerProcess | None = None
        self._draining = asyncio.Event()

    @property
    def worker(self) -> WorkerId | None:
        """The running worker, if any."""
        return self._running.worker if self._running is not None else None

    @property
    def is_starting(self) -> bool:
        """Whether its worker has not sent a message yet."""
        return self._running is not None and not self._running.has_started

    def send(self, message: AnyMessage, blob: bytes = b"") -> None:
        """Send without waiting: a worker that does not read becomes silent and is killed."""
        if self._running is not None and not self._running.writer.is_closing():
            wire.write(self._running.writer, Envelope(self._running.worker, message), blob)

    async def kill(self, why: str = "") -> None:
        """Kill the worker. Its reported cause is "killed, because it {why}", or the signal if `why` is empty."""
        if self._running is not None:
            self._running.kill_cause = f"killed, because it {why}" if why else ""
            await self._nursery.kill(self._running.child)

    def drain(self) -> None:
        """Make the worker hand back its samples and exit; start no other."""
        self._draining.set()
        self.send(Drain())

    async def keep(self) -> None:
        """Run one worker after the other from the end of the machine's boot until drained."""
        await self._pause(self._launch.spec.boot_s)
        backoff = BACKOFF_FIRST_S
        clock = asyncio.get_running_loop().time
        while not self._draining.is_set():
            started = clock()
            was_killed = await self._run_worker()
            has_worked = was_killed or clock() - started > STABLE_S
            backoff = BACKOFF_FIRST_S if has_worked else min(2 * backoff, BACKOFF_MOST_S)
            await self._pause(backoff)

    async def _pause(self, seconds: float) -> None:
        """Wait for this time, or until drained."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._draining.wait(), seconds)

    async def _run_worker(self) -> bool:
        """Run one worker to its end; True if it had started and was killed by SIGKILL, which is no failed start."""
        self._incarnation += 1
        worker = WorkerId(f"{self._launch.node}/{self._number}.{self._incarnation}")
        here, there = socket.socketpair()
        with there:
            log = Path(self._launch.logs) / f"{worker.replace('/', '-')}.log"
            child = await self._nursery.spawn(worker, there, self._launch.for_worker(self._number).to_bytes(), log)
        reader, writer = await asyncio.open_unix_connection(sock=here, limit=wire.STREAM_LIMIT)
        process = self._running = _WorkerProcess(worker, child, writer, asyncio.get_running_loop().time())
        for load in self._agent.current_loads():
            self.send(load)
        if self._draining.is_set():
            self.send(Drain())
        try:
            cause = await self._until_end(process, reader)
        finally:
            self._running = None
            writer.close()
        await self._agent.gone(worker, cause)
        return process.has_started and process.child.exited.result() == -signal.SIGKILL

    async def _until_end(self, process: _WorkerProcess, reader: asyncio.StreamReader) -> str:
        relaying = asyncio.create_task(self._relay(process, reader))
        watching = asyncio.create_task(self._watch(process))
        ends: tuple[asyncio.Future[Any], ...] = (relaying, watching, process.child.exited)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        cause = ""
        if watching.done():
            cause = watching.result()
        elif relaying.done():
            cause = relaying.result()
        self._agent.died(process.worker, cause or "its process ended")
        if not cause:
            await asyncio.wait({process.child.exited}, timeout=EXIT_GRACE_S)
        watching.cancel()
        await self._nursery.kill(process.child)
        status = await process.child.exited
        await asyncio.wait({relaying}, timeout=LAST_MESSAGES_S)
        relaying.cancel()
        return cause or process.kill_cause or _cause(status)

    async def _relay(self, process: _WorkerProcess, reader: asyncio.StreamReader) -> str:
        """Relay messages until the socket ends; return what is wrong with it, or ''."""
        try:
            while (frame := await wire.read(reader)) is not None:
                is_first = not process.has_started
                process.has_started = process.is_relaying = True
                await self._agent.receive(process.worker, frame[0].message, frame[1])
                if is_first:
                    self._agent.started()
                process.last_message_at, process.is_relaying = asyncio.get_running_loop().time(), False
        except wire.WireError as error:
            return str(error)
        return ""

    async def _watch(self, process: _WorkerProcess) -> str:
        """Wait until the worker has been silent for too long; return the cause of its kill."""
        clock = asyncio.get_running_loop().time
        while True:
            allowed = self._launch.silence_s if process.has_started else self._launch.start_s
            left = process.last_message_at + allowed - clock()
            if left <= 0:
                before = process.last_message_at
                # If this process was the one that stalled, the worker's messages are in the socket: read them first.
                await asyncio.sleep(allowed * SECOND_CHANCE)
                if process.last_message_at == before and not process.is_relaying:
                    return f"silent for {allowed:g} s"
            else:
                # The first message shortens the allowed silence, so check again before the start time is over.
                await asyncio.sleep(min(left, self._launch.silence_s))


def _cause(status: int) -> str:
    if status == 0:
        return "exited"
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
