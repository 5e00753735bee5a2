"""One slot of a node: keeps a worker alive on it, life after life, and never two at a time.

    BOOTING --boot_s--> STARTING --Spawned--> ALIVE --end of process or socket, silence--> GONE --back-off--> STARTING
       `--draining--> (the slot is empty)                                                    `--draining--> (empty)

Invariant: `gone` is called once per life, after everything the worker said was relayed and its process is reaped, and
before the next life starts (tests/processes/test_pool.py). A hung worker is killed, which turns a hang into a death.
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
"""Between a worker's closing of its socket and the end of its process."""
SECOND_CHANCE = 0.1
"""Part of the allowed silence that is waited once more before a kill."""
LAST_WORDS_S = 5.0
"""To relay what a dead worker had still sent; more would delay the news of its death."""
BACKOFF_FIRST_S = 0.1
BACKOFF_MOST_S = 10.0
"""Doubles per life that failed by itself; a worker that cannot start must not burn the node's CPU."""
GOOD_LIFE_S = 20.0
"""A life this long was no failed start."""


class SlotActions(Protocol):
    """What a slot needs from its agent."""

    async def heard(self, worker: WorkerId, message: AnyMessage, blob: bytes) -> None: ...

    def died(self, worker: WorkerId, why: str) -> None:
        """At once: its crew waits for it; `gone` follows when all that it said is relayed."""

    async def gone(self, worker: WorkerId, cause: str) -> None: ...

    def standing(self) -> Sequence[Load]:
        """Announcements that a new worker has missed."""


@dataclass
class _Life:
    worker: WorkerId
    child: Child
    writer: asyncio.StreamWriter
    heard_at: float
    has_spoken: bool = False
    is_relayed: bool = False
    """Something it said is on its way to a controller that takes its time: no silence of the worker's."""
    killed_for: str = ""


class Slot:
    """Waits for the end of its worker; nursery, socket and clock wake it."""

    def __init__(self, number: int, launch: AgentLaunch, nursery: NurseryClient, household: SlotActions) -> None:
        self._number = number
        self._launch = launch
        self._nursery = nursery
        self._household = household
        self._incarnation = 0
        self._life: _Life | None = None
        self._draining = asyncio.Event()

    @property
    def worker(self) -> WorkerId | None:
        """Who lives here now."""
        return self._life.worker if self._life is not None else None

    def tell(self, message: AnyMessage, blob: bytes = b"") -> None:
        """Never waits: a worker that does not read is silent soon, and killed."""
        if self._life is not None and not self._life.writer.is_closing():
            wire.write(self._life.writer, Envelope(self._life.worker, message), blob)

    async def kill(self, why: str = "") -> None:
        """`why` is told as the cause of its end, and reads on from the worker's name; without one the signal is."""
        if self._life is not None:
            self._life.killed_for = f"killed, because it {why}" if why else ""
            await self._nursery.kill(self._life.child)

    def drain(self) -> None:
        """The worker hands back and exits, and none follows it."""
        self._draining.set()
        self.tell(Drain())

    async def keep(self) -> None:
        """Life after life from the end of the machine's boot on, until drained."""
        await self._pause(self._launch.spec.boot_s)
        backoff = BACKOFF_FIRST_S
        clock = asyncio.get_running_loop().time
        while not self._draining.is_set():
            born = clock()
            was_taken = await self._live()
            has_lived = was_taken or clock() - born > GOOD_LIFE_S
            backoff = BACKOFF_FIRST_S if has_lived else min(2 * backoff, BACKOFF_MOST_S)
            await self._pause(backoff)

    async def _pause(self, seconds: float) -> None:
        """So long, or until drained."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._draining.wait(), seconds)

    async def _live(self) -> bool:
        """One life; whether it was a working one that somebody took."""
        self._incarnation += 1
        worker = WorkerId(f"{self._launch.node}/{self._number}.{self._incarnation}")
        here, there = socket.socketpair()
        with there:
            log = Path(self._launch.logs) / f"{worker.replace('/', '-')}.log"
            child = await self._nursery.spawn(worker, there, self._launch.for_worker(self._number).to_bytes(), log)
        reader, writer = await asyncio.open_unix_connection(sock=here, limit=wire.STREAM_LIMIT)
        life = self._life = _Life(worker, child, writer, asyncio.get_running_loop().time())
        for load in self._household.standing():
            self.tell(load)
        if self._draining.is_set():
            self.tell(Drain())
        try:
            cause = await self._until_its_end(life, reader)
        finally:
            self._life = None
            writer.close()
        await self._household.gone(worker, cause)
        return life.has_spoken and life.child.exited.result() == -signal.SIGKILL

    async def _until_its_end(self, life: _Life, reader: asyncio.StreamReader) -> str:
        relaying = asyncio.create_task(self._relay(life, reader))
        watching = asyncio.create_task(self._watch(life))
        ends: tuple[asyncio.Future[Any], ...] = (relaying, watching, life.child.exited)
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        cause = ""
        if watching.done():
            cause = watching.result()
        elif relaying.done():
            cause = relaying.result()
        self._household.died(life.worker, cause or "its process ended")
        if not cause:
            await asyncio.wait({life.child.exited}, timeout=EXIT_GRACE_S)
        watching.cancel()
        await self._nursery.kill(life.child)
        status = await life.child.exited
        await asyncio.wait({relaying}, timeout=LAST_WORDS_S)
        relaying.cancel()
        return cause or life.killed_for or _cause(status)

    async def _relay(self, life: _Life, reader: asyncio.StreamReader) -> str:
        """Until the socket ends; says what was wrong with it, if anything."""
        try:
            while (frame := await wire.read(reader)) is not None:
                life.has_spoken = life.is_relayed = True
                await self._household.heard(life.worker, frame[0].message, frame[1])
                life.heard_at, life.is_relayed = asyncio.get_running_loop().time(), False
        except wire.WireError as error:
            return str(error)
        return ""

    async def _watch(self, life: _Life) -> str:
        """Until the worker was silent for too long."""
        clock = asyncio.get_running_loop().time
        while True:
            allowed = self._launch.silence_s if life.has_spoken else self._launch.start_s
            left = life.heard_at + allowed - clock()
            if left <= 0:
                before = life.heard_at
                # If it was this process that stood still, its words lie in the socket: give them a chance first.
                await asyncio.sleep(allowed * SECOND_CHANCE)
                if life.heard_at == before and not life.is_relayed:
                    return f"silent for {allowed:g} s"
            else:
                # A first word shortens what is allowed, so look again before the long start time is over.
                await asyncio.sleep(min(left, self._launch.silence_s))


def _cause(status: int) -> str:
    if status == 0:
        return "exited"
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exited with status {status}"
