"""Simulated nodes on this machine: one agent process per node, all workers forked from one nursery.

Each node is a process group, so that losing it is one SIGKILL to all its processes, as a machine's loss is. A node
that was killed comes back when it is added again; one whose agent died unasked is started again by the pool.

Invariant: when the pool stops, or its process dies in whatever way, none of its processes is left
(tests/processes/test_pool.py). Agents die with their parent (kernel); the nursery sees its stdin close and kills
the groups of all agents. What is left in shared memory after a SIGKILL is removed by the next start of the same run.
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

from spotlight.compute.rewards.config import SecondJudge
from spotlight.core.errors import EnvironmentProblem, SpotlightError
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind
from spotlight.node.launch import AgentLaunch, AgentOrder, GiveNotice, KillWorker
from spotlight.node.nursery import READY
from spotlight.pools.config import ClusterConfig
from spotlight.pools.devices import DeviceTable
from spotlight.pools.pool import Departure, NodeDown, NodeUp, PoolEvent
from spotlight.pools.processes import REAP_S, Incarnations, close_stdin, group_is_dead, kill_group, wait_or_kill

SHARED_MEMORY = Path("/dev/shm")
SPILL = "store"
"""Folder in the run's, for weights that have no room elsewhere."""
PRELOAD_S = 300.0
"""Until the nursery serves: its imports take seconds on a quiet machine, minutes on a cold and busy one."""
GOOD_LIFE_S = 30.0
"""An agent that lived this long did not fail to start."""
RESTARTS = 5
"""Failed starts in a row before a node is given up: what fails five times fails because of a setting."""
ENVIRONMENT = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS", "PYTHONSAFEPATH"),
    "1",
)
"""A nursery may not have a thread pool when it forks, and files of the working folder may not hide Python modules."""


@dataclass(frozen=True, kw_only=True)
class LocalPoolSettings:
    """What a run tells its pool."""

    run: Path
    """The run's folder; logs and the count of incarnations are kept in it."""
    controller: Path
    """Unix socket that agents dial; `sockets(run)` is a folder whose paths are short enough."""
    token: str
    entry: str
    """`package.module:function` that a worker runs."""
    preload: tuple[str, ...]
    """Modules that all workers need."""
    worker_settings: bytes
    reward: str
    judge: SecondJudge | None = None
    reward_processes: int
    reward_timeout_s: float
    cluster: ClusterConfig
    heads: int = 1
    """Attention heads of the model; with one, workers never share a sample."""
    token_pixels: int = 1
    """Pixels of a picture that one token of the model stands for."""
    devices: DeviceTable = field(default_factory=DeviceTable)
    """Where every slot computes, in all incarnations of its node."""


def sockets(run: Path) -> Path:
    """The run's private folder in shared memory, or in the temporary folder where there is none.

    Short, because a unix socket's path has at most 107 bytes.
    """
    has_shared_memory = os.access(SHARED_MEMORY, os.W_OK | os.X_OK)
    return (SHARED_MEMORY if has_shared_memory else Path(tempfile.gettempdir())) / private_name(run)


def private_name(run: Path) -> str:
    """A folder name that no other run on this machine has."""
    name = hashlib.blake2b(str(run.resolve()).encode(), digest_size=4).hexdigest()
    return f"spotlight-{run.resolve().name[:32]}-{name}"


@dataclass
class _Node:
    spec: NodeSpec
    node: NodeId
    process: subprocess.Popen[bytes]
    store: Path
    born: float
    gone: asyncio.Event
    is_killed: bool = False


class LocalPool:
    """Waits for agents to end (their pidfds wake it) and for nothing else. Implements `runtime.pool.Pool`."""

    def __init__(self, settings: LocalPoolSettings) -> None:
        self._settings = settings
        self._shared = sockets(settings.run)
        self._lock: int | None = None
        self._nursery: subprocess.Popen[bytes] | None = None
        self._nodes: dict[str, _Node] = {}
        self._failed_starts: dict[str, int] = {}
        self._burials: set[asyncio.Task[None]] = set()
        self._restarts: dict[str, asyncio.Task[None]] = {}
        self._starting_nursery = asyncio.Lock()
        self._events: asyncio.Queue[PoolEvent | None] = asyncio.Queue()
        self._is_stopping = False
        self._counts = Incarnations(settings.run / "incarnations.json")

    async def start(self) -> None:
        """Take the run's shared memory and have the nursery ready; takes as long as the imports do."""
        self._settings.run.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(exist_ok=True)
        self._lock = _claim(self._shared, keep=self._settings.controller)
        for left in (self._spill, *((self._stores,) if self._stores != self._shared else ())):
            shutil.rmtree(left, ignore_errors=True)
        await self._need_nursery()

    async def events(self) -> AsyncIterator[PoolEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(self._nodes[name].node for name in sorted(self._nodes))

    def current(self, name: str) -> NodeId | None:
        return self._nodes[name].node if name in self._nodes else None

    async def add_node(self, spec: NodeSpec) -> NodeId:
        self._forget_restart(spec.name)
        await self._need_nursery()
        if spec.name in self._nodes:
            return self._nodes[spec.name].node
        node = spec.incarnation(self._counts.next(spec.name))
        store = self._stores / spec.name
        _make(store, "cluster.store")
        process = self._start_agent(self.launch_of(spec, node))
        loop = asyncio.get_running_loop()
        here = self._nodes[spec.name] = _Node(spec, node, process, store, loop.time(), asyncio.Event())
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        pidfd = os.pidfd_open(process.pid)
        loop.add_reader(pidfd, self._ended, here, pidfd)
        self._events.put_nowait(NodeUp(node=node, spec=spec))
        return node

    async def warn(self, node: NodeId, kind: NoticeKind, seconds: float) -> None:
        self._order(node, GiveNotice(kind=kind, seconds=seconds))

    async def kill_worker(self, worker: WorkerId) -> None:
        self._order(NodeId(worker.partition("/")[0]), KillWorker(worker=worker))

    async def kill_node(self, node: NodeId) -> None:
        self._forget_restart(node.rpartition(".")[0])
        if (here := self._find(node)) is None:
            return
        # Once reaped, its number may be another's.
        if here.process.returncode is None:
            here.is_killed = True
            # The agent by itself too: in its first moments it does not lead its group yet.
            here.process.kill()
            kill_group(here.process.pid)
        await here.gone.wait()

    async def drain_node(self, node: NodeId) -> None:
        here = self._find(node)
        if here is not None and here.process.returncode is None:
            # We take it: in its first moments the agent cannot drain yet, and its end is no crash.
            here.is_killed = True
            here.process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(here.gone.wait(), self._settings.cluster.drain_s + REAP_S)
        await self.kill_node(node)

    async def stop(self) -> None:
        self._is_stopping = True
        for name in list(self._restarts):
            self._forget_restart(name)
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
        """Folder of all nodes' weights."""
        chosen = self._settings.cluster.store
        return self._shared if chosen is None else Path(chosen).resolve() / private_name(self._settings.run)

    @property
    def _spill(self) -> Path:
        return self._settings.run / SPILL

    @property
    def _logs(self) -> Path:
        return self._settings.run / "logs"

    async def _need_nursery(self) -> None:
        """One that died is replaced; its workers died with it, and their agents then."""
        async with self._starting_nursery:
            if self._nursery is None or self._nursery.poll() is not None:
                await self._start_nursery()

    async def _start_nursery(self) -> None:
        settings, log = self._settings, self._logs / "nursery.log"
        preload = [part for module in settings.preload for part in ("--preload", module)]
        command = ["-m", "spotlight.node.nursery", "--socket", str(self._nursery_socket), "--entry", settings.entry]
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
                f"the process that workers are forked from did not finish its imports within {PRELOAD_S:g} s, so that "
                f"no worker can start; see whether the disk or the machine is overloaded, and {log}."
            ) from error
        finally:
            transport.close()
        if ready != READY:
            last = log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise EnvironmentProblem(
                f"the process that workers are forked from could not import {settings.entry} and "
                f"{', '.join(settings.preload) or 'nothing else'} ({last}), so that no worker can start; see {log}."
            )

    def launch_of(self, spec: NodeSpec, node: NodeId) -> AgentLaunch:
        """What the agent of this incarnation is started with."""
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
            reward=settings.reward,
            judge=settings.judge,
            reward_processes=settings.reward_processes,
            reward_timeout_s=settings.reward_timeout_s,
            threads=settings.cluster.threads,
            heartbeat_s=settings.cluster.heartbeat_s,
            silence_s=settings.cluster.silence_s,
            start_s=settings.cluster.start_s,
            drain_s=settings.cluster.drain_s,
            settings=settings.worker_settings,
            elastic=settings.cluster.elastic.model_dump_json(),
            heads=settings.heads,
            token_pixels=settings.token_pixels,
            devices=settings.devices.of(spec),
        )

    def _start_agent(self, launch: AgentLaunch) -> subprocess.Popen[bytes]:
        spec, node = launch.spec, launch.node
        path = self._shared / f"{spec.name}.json"
        path.write_bytes(msgspec.json.encode(launch))
        with (self._logs / f"{node}.log").open("ab") as output:
            # Started from the loop's own thread: the agent dies when the thread that started it does.
            return subprocess.Popen(
                [sys.executable, "-m", "spotlight.node.agent", "--launch", str(path)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=os.environ | ENVIRONMENT,
            )

    def _ended(self, here: _Node, pidfd: int) -> None:
        """The agent is dead, but not reaped yet: until it is, its process group cannot be another's."""
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        kill_group(here.process.pid)
        status = here.process.wait()
        close_stdin(here.process)
        burial = asyncio.create_task(self._bury(here, status))
        self._burials.add(burial)
        burial.add_done_callback(self._burials.discard)

    async def _bury(self, here: _Node, status: int) -> None:
        await group_is_dead(here.process.pid)
        name = here.spec.name
        for copies in (here.store, self._spill / name):
            shutil.rmtree(copies, ignore_errors=True)
        del self._nodes[name]
        departure = Departure.KILLED if here.is_killed else Departure.LEFT if status == 0 else Departure.CRASHED
        has_lived = asyncio.get_running_loop().time() - here.born > GOOD_LIFE_S
        has_failed = departure is Departure.CRASHED and not has_lived
        failed = self._failed_starts[name] = self._failed_starts.get(name, 0) + 1 if has_failed else 0
        returns = departure is Departure.CRASHED and failed <= RESTARTS and not self._is_stopping
        cause = f"agent ended with status {status}, see {self._logs / f'{here.node}.log'}"
        self._events.put_nowait(
            NodeDown(node=here.node, spec=here.spec, departure=departure, cause=cause, returns=returns)
        )
        if returns:
            self._restarts[name] = asyncio.create_task(self._restart(here.spec, 0.25 * 2**failed))
        here.gone.set()

    async def _restart(self, spec: NodeSpec, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        del self._restarts[spec.name]
        try:
            await self.add_node(spec)
        except (OSError, SpotlightError) as error:
            node, cause = NodeId(spec.name), f"it cannot be started again: {error}"
            self._events.put_nowait(NodeDown(node=node, spec=spec, departure=Departure.CRASHED, cause=cause))

    def _forget_restart(self, name: str) -> None:
        """Whoever adds or kills a node decides about it now."""
        if (restart := self._restarts.pop(name, None)) is not None:
            restart.cancel()

    # -- small things --------------------------------------------------------------------------------------------------

    @property
    def _nursery_socket(self) -> Path:
        return self._shared / "nursery.sock"

    def _find(self, node: NodeId) -> _Node | None:
        return next((here for here in self._nodes.values() if here.node == node), None)

    def _order(self, node: NodeId, order: AgentOrder) -> None:
        if (here := self._find(node)) is not None and here.process.stdin is not None:
            # A node that is going needs no orders, and one that reads none must not stop the controller.
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(here.process.stdin.fileno(), msgspec.json.encode(order) + b"\n")


def _claim(folder: Path, keep: Path) -> int:
    """Make the run's folder ours and empty, but for the controller's socket; the lock dies with this process."""
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder / "owner.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise EnvironmentProblem(
            f"another process works on this run already (it holds {folder / 'owner.lock'}), and two would do its work "
            "twice; stop that one first."
        ) from error
    for left in folder.iterdir():
        if left.is_dir():
            shutil.rmtree(left)
        elif left not in (folder / "owner.lock", keep):
            left.unlink()
    return lock


def _make(folder: Path, setting: str) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(
            f"the folder {folder} for a node's weights cannot be made ({error.strerror}); free room there, or choose "
            f"another with {setting}."
        ) from error
