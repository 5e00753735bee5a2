"""Simulated nodes on this machine: one agent process per node, all workers forked from one nursery.

Each node is a process group, so its loss is one SIGKILL to all its processes, as the loss of a machine is. A killed
node returns when it is added again; one whose agent died unexpectedly is restarted by the pool.

Invariant (tests/processes/test_pool.py): when the pool stops, or its process dies in any way, none of its processes is
left. The kernel kills agents with their parent; the nursery's stdin closes, and it kills the groups of all agents.
Files left in shared memory after a SIGKILL are removed by the next start of the same run.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from spotlight.compute.rewards.config import SecondJudge, Term
from spotlight.core.errors import EnvironmentProblem, SpotlightError
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind
from spotlight.node.launch import AgentLaunch, AgentOrder, DrainNode, GiveNotice, KillWorker
from spotlight.node.nursery import READY
from spotlight.pools.config import ClusterConfig
from spotlight.pools.devices import DeviceTable
from spotlight.pools.pool import Departure, NodeDown, NodeUp, PoolEvent
from spotlight.pools.processes import REAP_S, Incarnations, close_stdin, group_is_dead, kill_group, wait_or_kill

SHARED_MEMORY = Path("/dev/shm")
SPILL = "store"
"""Folder in the run folder, for weights that do not fit the store."""
PRELOAD_S = 300.0
"""Time limit for the nursery to start: its imports take seconds on a quiet machine, minutes on a cold and busy one."""
STABLE_S = 30.0
"""An agent that ran this long did not fail to start."""
RESTARTS = 5
"""Failed starts in a row before the pool stops restarting a node: more would repeat a wrong setting."""
ENVIRONMENT = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS", "PYTHONSAFEPATH"),
    "1",
)
"""The nursery must not have a thread pool when it forks, and files of the working folder must not hide modules."""


@dataclass(frozen=True, kw_only=True)
class LocalPoolSettings:
    """Settings of a run's pool."""

    run: Path
    """The run folder; it holds the logs and the incarnation counters."""
    controller: Path
    """Unix socket of the controller; paths in the folder `sockets(run)` are short enough."""
    token: str
    entry: str
    """`package.module:function` that a worker runs."""
    preload: tuple[str, ...]
    """Modules that all workers need."""
    is_bare: bool = False
    """The nursery imports nothing: workers import after their fork, and each node keeps a spare process. It is so too
    where the imports start threads, which the nursery finds out by importing."""
    warm: str = ""
    """`package.module:function` that opens a GPU in a spare process, called with the name of the device."""
    worker_settings: bytes
    rewards: tuple[Term, ...]
    judge: SecondJudge | None = None
    cluster: ClusterConfig
    heads: int = 1
    """Attention heads of the model; with one, workers never share a sample."""
    token_pixels: int = 1
    """Pixels of a picture per token of the model."""
    devices: DeviceTable = field(default_factory=DeviceTable)
    """Device of every slot, for all incarnations of its node."""


def sockets(run: Path) -> Path:
    """The run's private folder in shared memory, or in the temporary folder if there is no shared memory.

    Short, because a unix socket's path has at most 107 bytes.
    """
    has_shared_memory = os.access(SHARED_MEMORY, os.W_OK | os.X_OK)
    return (SHARED_MEMORY if has_shared_memory else Path(tempfile.gettempdir())) / private_name(run)


def private_name(run: Path) -> str:
    """A folder name that is unique to this run on this machine."""
    name = hashlib.blake2b(str(run.resolve()).encode(), digest_size=4).hexdigest()
    return f"spotlight-{run.resolve().name[:32]}-{name}"


@dataclass
class _Node:
    spec: NodeSpec
    node: NodeId
    process: subprocess.Popen[bytes]
    store: Path
    started: float
    gone: asyncio.Event
    is_killed: bool = False


class LocalPool:
    """Implements `Pool`; waits only for the ends of agents, by their pidfds."""

    def __init__(self, settings: LocalPoolSettings) -> None:
        self._settings = settings
        self._shared = sockets(settings.run)
        self._lock: int | None = None
        self._nursery: subprocess.Popen[bytes] | None = None
        self._nodes: dict[str, _Node] = {}
        self._failed_starts: dict[str, int] = {}
        self._cleanups: set[asyncio.Task[None]] = set()
        self._restarts: dict[str, asyncio.Task[None]] = {}
        self._starting_nursery = asyncio.Lock()
        self._events: asyncio.Queue[PoolEvent | None] = asyncio.Queue()
        self._is_stopping = False
        self._counts = Incarnations(settings.run / "incarnations.json")

    async def start(self) -> None:
        """Claim the run's shared memory and start the nursery, whose imports take seconds."""
        self._settings.run.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(exist_ok=True)
        self._lock = _claim(self._shared, keep=self._settings.controller)
        for left in (self._spill, *((self._stores,) if self._stores != self._shared else ())):
            shutil.rmtree(left, ignore_errors=True)
        await self._ensure_nursery()

    async def events(self) -> AsyncIterator[PoolEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(self._nodes[name].node for name in sorted(self._nodes))

    def current(self, name: str) -> NodeId | None:
        return self._nodes[name].node if name in self._nodes else None

    async def add_node(self, spec: NodeSpec) -> NodeId:
        self._cancel_restart(spec.name)
        await self._ensure_nursery()
        if spec.name in self._nodes:
            return self._nodes[spec.name].node
        node = spec.incarnation(self._counts.next(spec.name))
        store = self._stores / spec.name
        _make_folder(store, "cluster.store")
        process = self._start_agent(self.launch_of(spec, node))
        loop = asyncio.get_running_loop()
        entry = self._nodes[spec.name] = _Node(spec, node, process, store, loop.time(), asyncio.Event())
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        pidfd = os.pidfd_open(process.pid)
        loop.add_reader(pidfd, self._ended, entry, pidfd)
        self._events.put_nowait(NodeUp(node=node, spec=spec))
        return node

    async def warn(self, node: NodeId, kind: NoticeKind, seconds: float) -> None:
        self._order(node, GiveNotice(kind=kind, seconds=seconds))

    async def kill_worker(self, worker: WorkerId) -> None:
        self._order(NodeId(worker.partition("/")[0]), KillWorker(worker=worker))

    async def kill_node(self, node: NodeId) -> None:
        self._cancel_restart(node.rpartition(".")[0])
        if (entry := self._find(node)) is None:
            return
        # Once the agent is reaped, its pid may be reused.
        if entry.process.returncode is None:
            entry.is_killed = True
            # The agent separately too: just after its start it does not lead its group yet.
            entry.process.kill()
            kill_group(entry.process.pid)
        await entry.gone.wait()

    async def drain_node(self, node: NodeId) -> None:
        entry = self._find(node)
        if entry is not None and entry.process.returncode is None:
            entry.is_killed = True
            # Not SIGTERM, which may be a notice; the order waits in the pipe of an agent that has just started.
            self._order(node, DrainNode())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(entry.gone.wait(), self._settings.cluster.drain_s + REAP_S)
        await self.kill_node(node)

    async def stop(self) -> None:
        self._is_stopping = True
        for name in list(self._restarts):
            self._cancel_restart(name)
        await asyncio.gather(*(self.kill_node(node) for node in self.nodes()))
        if self._nursery is not None:
            close_stdin(self._nursery)
            await asyncio.to_thread(wait_or_kill, self._nursery)
            self._nursery = None
        if self._lock is not None:
            for folder in (self._shared, self._stores, self._spill):
                shutil.rmtree(folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = None
            self._events.put_nowait(None)

    # -- processes -----------------------------------------------------------------------------------------------------

    @property
    def _stores(self) -> Path:
        """Folder of all nodes' stores."""
        chosen = self._settings.cluster.store
        return self._shared if chosen is None else Path(chosen).resolve() / private_name(self._settings.run)

    @property
    def _spill(self) -> Path:
        return self._settings.run / SPILL

    @property
    def _logs(self) -> Path:
        return self._settings.run / "logs"

    async def _ensure_nursery(self) -> None:
        """Start the nursery if it is not running; a dead one has taken its workers and their agents with it."""
        async with self._starting_nursery:
            if self._nursery is None or self._nursery.poll() is not None:
                await self._start_nursery()

    async def _start_nursery(self) -> None:
        settings, log = self._settings, self._logs / "nursery.log"
        preload = [part for module in settings.preload for part in ("--preload", module)]
        command = ["-m", "spotlight.node.nursery", "--socket", str(self._nursery_socket), "--entry", settings.entry]
        command += [*(("--warm", settings.warm) if settings.warm else ()), *(("--bare",) if settings.is_bare else ())]
        with log.open("ab") as errors:
            nursery = self._nursery = subprocess.Popen(
                [sys.executable, *command, *preload],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | ENVIRONMENT,
                process_group=0,
            )
        assert nursery.stdout is not None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), nursery.stdout)
        try:
            ready = await asyncio.wait_for(reader.readline(), PRELOAD_S)
        except TimeoutError as error:
            raise EnvironmentProblem(
                f"the process that workers are forked from did not finish its imports within {PRELOAD_S:g} s, so no "
                f"worker can start; check whether the disk or the machine is overloaded, and see {log}."
            ) from error
        finally:
            transport.close()
        if ready != READY:
            last = log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise EnvironmentProblem(
                f"the process that workers are forked from could not import {settings.entry} and "
                f"{', '.join(settings.preload) or 'nothing else'} ({last}), so no worker can start; see {log}."
            )

    def launch_of(self, spec: NodeSpec, node: NodeId) -> AgentLaunch:
        """Launch settings of the agent of this incarnation."""
        settings = self._settings
        return AgentLaunch(
            node=node,
            spec=spec,
            controller=str(settings.controller),
            nursery=str(self._nursery_socket),
            token=settings.token,
            store=str(self._stores / spec.name),
            spill=str(self._spill / spec.name),
            shared=str(self._shared),
            logs=str(self._logs),
            rewards=settings.rewards,
            judge=settings.judge,
            threads=settings.cluster.threads,
            heartbeat_s=settings.cluster.heartbeat_s,
            silence_s=settings.cluster.silence_s,
            grace_s=settings.cluster.grace_s,
            home=str(settings.run),
            start_s=settings.cluster.start_s,
            drain_s=settings.cluster.drain_s,
            settings=settings.worker_settings,
            elastic=settings.cluster.elastic.model_dump_json(),
            heads=settings.heads,
            token_pixels=settings.token_pixels,
            gang_port=settings.cluster.gang_port,
            devices=settings.devices.of(spec),
            notices=settings.cluster.notices.on_simulated_nodes().model_dump_json(),
        )

    def _start_agent(self, launch: AgentLaunch) -> subprocess.Popen[bytes]:
        spec, node = launch.spec, launch.node
        path = self._shared / f"{spec.name}.json"
        path.write_bytes(msgspec.json.encode(launch))
        with (self._logs / f"{node}.log").open("ab") as output:
            # Started from the event loop's thread, because the agent dies with the thread that started it.
            return subprocess.Popen(
                [sys.executable, "-m", "spotlight.node.agent", "--launch", str(path)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=os.environ | ENVIRONMENT,
            )

    def _ended(self, entry: _Node, pidfd: int) -> None:
        """Kill the group of a dead agent before reaping it: until then its group number cannot be reused."""
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        kill_group(entry.process.pid)
        status = entry.process.wait()
        close_stdin(entry.process)
        cleanup = asyncio.create_task(self._clean_up(entry, status))
        self._cleanups.add(cleanup)
        cleanup.add_done_callback(self._cleanups.discard)

    async def _clean_up(self, entry: _Node, status: int) -> None:
        await group_is_dead(entry.process.pid)
        name = entry.spec.name
        for copies in (entry.store, self._spill / name):
            shutil.rmtree(copies, ignore_errors=True)
        del self._nodes[name]
        departure = Departure.KILLED if entry.is_killed else Departure.LEFT if status == 0 else Departure.CRASHED
        has_worked = asyncio.get_running_loop().time() - entry.started > STABLE_S
        has_failed = departure is Departure.CRASHED and not has_worked
        failed = self._failed_starts[name] = self._failed_starts.get(name, 0) + 1 if has_failed else 0
        returns = departure is Departure.CRASHED and failed <= RESTARTS and not self._is_stopping
        cause = f"agent ended with status {status}, see {self._logs / f'{entry.node}.log'}"
        self._events.put_nowait(
            NodeDown(node=entry.node, spec=entry.spec, departure=departure, cause=cause, returns=returns)
        )
        if returns:
            self._restarts[name] = asyncio.create_task(self._restart(entry.spec, 0.25 * 2**failed))
        entry.gone.set()

    async def _restart(self, spec: NodeSpec, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        del self._restarts[spec.name]
        try:
            await self.add_node(spec)
        except (OSError, SpotlightError) as error:
            node, cause = NodeId(spec.name), f"it cannot be restarted: {error}"
            self._events.put_nowait(NodeDown(node=node, spec=spec, departure=Departure.CRASHED, cause=cause))

    def _cancel_restart(self, name: str) -> None:
        """Cancel a pending restart: an explicit add or kill of the node replaces it."""
        if (restart := self._restarts.pop(name, None)) is not None:
            restart.cancel()

    # -- look-up and orders --------------------------------------------------------------------------------------------

    @property
    def _nursery_socket(self) -> Path:
        return self._shared / "nursery.sock"

    def _find(self, node: NodeId) -> _Node | None:
        return next((entry for entry in self._nodes.values() if entry.node == node), None)

    def _order(self, node: NodeId, order: AgentOrder) -> None:
        if (entry := self._find(node)) is not None and entry.process.stdin is not None:
            # A node that is ending needs no orders, and one that does not read must not block the controller.
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(entry.process.stdin.fileno(), msgspec.json.encode(order) + b"\n")


def _claim(folder: Path, keep: Path) -> int:
    """Lock the run's folder and empty it, except for the controller's socket; the lock ends with this process."""
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder / "owner.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise EnvironmentProblem(
            f"another process works on this run already (it holds {folder / 'owner.lock'}), and two would repeat its "
            "work; stop that one first."
        ) from error
    for left in folder.iterdir():
        if left.is_dir():
            shutil.rmtree(left)
        elif left not in (folder / "owner.lock", keep):
            left.unlink()
    return lock


def _make_folder(folder: Path, setting: str) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(
            f"the folder {folder} for a node's weights cannot be created ({error.strerror}); free space there, or "
            f"choose another folder with {setting}."
        ) from error
