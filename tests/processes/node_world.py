"""A stub of the controller, a local pool, and helpers to find every process that they started."""

import asyncio
import os
import uuid
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from spotlight.compute.rewards.config import Term
from spotlight.core import messages as m
from spotlight.core import wire
from spotlight.core.link import Link
from spotlight.core.link_stream import LinkStream
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, Prompt, Sample, Sampling, Size, WorkerId
from spotlight.core.work import Request, SlotClass, Work
from spotlight.pools.config import ClusterConfig
from spotlight.pools.local import LocalPool, LocalPoolSettings
from spotlight.pools.machine import sockets

PATIENCE_S = 20.0
"""Time limit of every wait; reached only when a test fails."""
MARK = "SPOTLIGHT_STORY"
SPOT = NodeSpec(name="spot-1", slot_class=SlotClass.SPOT, zone="a", price="list")


def marked() -> str:
    """Mark the environment of every process that this one starts from now on; returns the mark."""
    os.environ[MARK] = uuid.uuid4().hex
    return os.environ[MARK]


def living(mark: str) -> set[int]:
    """Processes with this mark in their environment, except this one."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


def _stats() -> dict[int, tuple[str, int, int]]:
    """State, parent and process group of every process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            found[int(entry.name)] = (state, int(parent), int(group))
    return found


def parent_of(pid: int) -> int:
    return _stats()[pid][1]


def group_of(leader: int) -> set[int]:
    """Processes of a process group that still run."""
    return {pid for pid, (state, _, group) in _stats().items() if group == leader and state != "Z"}


def spares_of(leader: int) -> set[int]:
    """Spare processes of a process group, known by the file that their output goes to."""
    return {pid for pid in group_of(leader) if _output(pid).endswith("-spare.log")}


def _output(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return ""


def zombies_of(parent: int) -> set[int]:
    return {pid for pid, (state, of, _) in _stats().items() if of == parent and state == "Z"}


def semaphores_of(pids: set[int]) -> set[Path]:
    """Named semaphores that these processes have open."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {Path(line.split(maxsplit=5)[5]) for line in lines if "/dev/shm/sem." in line}


async def eventually(condition, what: str) -> None:
    """Poll until the condition is true; processes end a little after they are killed."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"never happened: {what}"
        await asyncio.sleep(0.01)


class ControllerStub:
    """Records every message of the nodes and sends those of the test."""

    def __init__(self) -> None:
        self.received: list[tuple[m.Envelope, bytes]] = []
        self.lost: set[NodeId] = set()
        self._changed = asyncio.Condition()
        self._streams: dict[NodeId, LinkStream] = {}
        self._server: asyncio.AbstractServer | None = None

    async def open(self, path: Path) -> None:
        self._server = await asyncio.start_unix_server(self._serve, str(path), limit=wire.STREAM_LIMIT)

    async def close(self) -> None:
        self._server.close()
        for stream in list(self._streams.values()):
            stream.lose()

    def send(self, node: NodeId, message: m.AnyMessage, worker: WorkerId | None = None, blob: bytes = b"") -> None:
        self._streams[node].send(m.Envelope(worker, message), blob)

    def all(self, kind, worker: WorkerId | None = None) -> list:
        return [
            envelope.message
            for envelope, _ in self.received
            if isinstance(envelope.message, kind) and worker in (None, envelope.worker)
        ]

    async def wait(self, kind, count: int = 1, worker: WorkerId | None = None):
        """The count-th message of this kind."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: len(self.all(kind, worker)) >= count)
        return self.all(kind, worker)[count - 1]

    async def wait_lost(self, node: NodeId) -> None:
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(lambda: node in self.lost)

    async def worker(self, worker: WorkerId) -> m.Hello:
        return await self.wait(m.Hello, worker=worker)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await wire.read(reader)
        node, clock = hello[0].message.node, asyncio.get_running_loop().time
        wire.write(writer, m.Envelope(None, m.Welcome(received=0)))
        stream = self._streams[node] = LinkStream(Link(clock()), clock)
        stream.attach(reader, writer, 0)
        pinging = asyncio.create_task(stream.keep_alive())
        frame = hello
        while frame is not None:
            async with self._changed:
                self.received.append(frame)
                self._changed.notify_all()
            frame = await stream.read(reader)
        pinging.cancel()
        writer.close()
        async with self._changed:
            self._streams.pop(node, None)
            self.lost.add(node)
            self._changed.notify_all()


def pool_settings(run: Path, is_scored: bool = False, **cluster: Any) -> LocalPoolSettings:
    """Settings of a pool of echo workers; without rewards a node starts no process that scores."""
    patience = {"heartbeat_s": 0.1, "silence_s": 5.0, "drain_s": 5.0} | cluster
    return LocalPoolSettings(
        run=run,
        controller=sockets(run) / "controller.sock",
        token="secret",
        entry="echo_worker:entry",
        preload=("json",),
        worker_settings=b"",
        rewards=(Term(name="echo_worker:Brightness", processes=1, timeout_s=120.0),) if is_scored else (),
        cluster=ClusterConfig(**patience),
    )


@asynccontextmanager
async def world(run: Path, is_bare: bool = False, is_scored: bool = False, **cluster: Any):
    """A controller and a started pool without nodes; both are closed at the end. Results need `is_scored`."""
    settings = replace(pool_settings(run, is_scored, **cluster), is_bare=is_bare)
    pool, controller = LocalPool(settings), ControllerStub()
    await pool.start()
    try:
        await controller.open(settings.controller)
        yield pool, controller
    finally:
        await pool.stop()
        await controller.close()


def grant(*seeds: int, work: Work = Work.ROLLOUT, text: str = "hello", attempt: int = 1) -> m.Grant:
    prompt = Prompt(text=text)
    requests = [
        Request(
            work=work,
            iteration=0,
            group=0,
            sample=Sample(prompt=prompt.id, seed=seed, sampling=Sampling(steps=10, size=Size(4, 6)), version=0),
        )
        for seed in seeds
    ]
    return m.Grant(leases=tuple(m.Granted(request=request, attempt=attempt, prompt=prompt) for request in requests))
