"""One machine of a run: its private folder, the nursery that all its workers are forked from, and its agents.

The local pool, `spotlight join` and any other pool use this class for the machine that they run on. A node is a
process group led by its agent, so its loss is one SIGKILL to all its processes.

Invariant (tests/processes/test_pool.py): when the machine stops, or its process dies in any way, none of its processes
is left. The kernel kills agents with their parent; the nursery's stdin closes, and it kills the groups of all agents.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from spotlight.core.errors import EnvironmentProblem
from spotlight.core.node_spec import NodeSpec
from spotlight.core.tls import write_private
from spotlight.core.types import NodeId
from spotlight.node.launch import AgentLaunch, AgentOrder, DrainNode, SlotDevice
from spotlight.node.nursery import READY
from spotlight.pools.processes import REAP_S, close_stdin, group_is_dead, kill_group, wait_or_kill
from spotlight.pools.read_ahead import ReadAhead

SHARED_MEMORY = Path("/dev/shm")
SPILL = "store"
"""Folder in the machine's folder, for weights that do not fit the store."""
PRELOAD_S = 300.0
"""Time limit for the nursery to start: its imports take seconds on a quiet machine, minutes on a cold and busy one."""
ENVIRONMENT = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS", "PYTHONSAFEPATH"),
    "1",
)
"""The nursery must not have a thread pool when it forks, and files of the working folder must not hide modules."""


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


@dataclass(frozen=True, kw_only=True)
class MachineSettings:
    """Settings of a run on one machine."""

    folder: Path
    """The run's folder on this machine; it holds the logs."""
    home: Path
    """Folder of the run's blobs: the run folder itself, or this machine's mirror of it."""
    entry: str
    """`package.module:function` that a worker runs."""
    preload: tuple[str, ...] = ()
    """Modules that all workers need."""
    is_bare: bool = False
    """The nursery imports nothing: workers import after their fork, and each node keeps a spare process. It is so too
    where the imports start threads, which the nursery finds out by importing."""
    warm: str = ""
    """`package.module:function` that opens a GPU in a spare process, called with the name of the device."""
    store: str | None = None
    """Folder for the nodes' copies of published weights; None: shared memory."""
    model: str = ""
    """Base weights that workers load, which are read ahead; empty if they load none."""
    drain_s: float
    keep: Path | None = None
    """Socket in the private folder that is not this machine's; it stays when the folder is emptied."""


@dataclass(frozen=True)
class AgentEnd:
    """An agent and all its processes are gone."""

    node: NodeId
    spec: NodeSpec
    status: int
    is_killed: bool
    """This machine ended it."""
    ran_s: float
    log: Path


@dataclass(eq=False)
class _Running:
    spec: NodeSpec
    node: NodeId
    process: subprocess.Popen[bytes]
    started: float
    gone: asyncio.Event
    is_killed: bool = False


class Machine:
    """Starts and ends agents; `ended` is called for each that is gone. Waits for their ends only, by their pidfds."""

    def __init__(self, settings: MachineSettings, ended: Callable[[AgentEnd], None]) -> None:
        self._settings = settings
        self._ended = ended
        self.shared = sockets(settings.folder)
        self._lock: int | None = None
        self._nursery: subprocess.Popen[bytes] | None = None
        self._agents: dict[str, _Running] = {}
        self._cleanups: set[asyncio.Task[None]] = set()
        self._starting_nursery = asyncio.Lock()
        self._ahead = ReadAhead(settings.model)

    async def start(self) -> None:
        """Claim the run's shared memory, and read the model ahead while the nursery's imports take seconds."""
        self._settings.folder.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(exist_ok=True)
        self._lock = _claim(self.shared, keep=self._settings.keep)
        for left in (self._spill, *((self._stores,) if self._stores != self.shared else ())):
            shutil.rmtree(left, ignore_errors=True)
        if self._settings.model:
            self._ahead.begin()
        await self.ensure_nursery()

    def nodes(self) -> tuple[NodeId, ...]:
        """Running nodes, in the order of their names."""
        return tuple(self._agents[name].node for name in sorted(self._agents))

    def current(self, name: str) -> NodeId | None:
        return self._agents[name].node if name in self._agents else None

    def completed(self, template: AgentLaunch, devices: tuple[SlotDevice, ...]) -> AgentLaunch:
        """The launch with the paths and devices of this machine."""
        name, home = template.spec.name, str(self._settings.home)
        return msgspec.structs.replace(
            template.at_home(home),
            nursery=str(self._nursery_socket),
            store=str(self._stores / name),
            spill=str(self._spill / name),
            shared=str(self.shared),
            logs=str(self.logs),
            devices=devices,
        )

    def run_agent(self, launch: AgentLaunch) -> None:
        """Start the agent of a node, which is not running; `ended` follows."""
        _make_folder(Path(launch.store), "cluster.store")
        process = self._start_agent(launch)
        loop = asyncio.get_running_loop()
        entry = self._agents[launch.spec.name] = _Running(
            launch.spec, launch.node, process, loop.time(), asyncio.Event()
        )
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        pidfd = os.pidfd_open(process.pid)
        loop.add_reader(pidfd, self._agent_ended, entry, pidfd)

    def order(self, node: NodeId, order: AgentOrder) -> None:
        if (entry := self._find(node)) is not None and entry.process.stdin is not None:
            # A node that is ending needs no orders, and one that does not read must not block the controller.
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                os.write(entry.process.stdin.fileno(), msgspec.json.encode(order) + b"\n")

    async def kill(self, node: NodeId) -> None:
        """Send SIGKILL to all processes of the node and wait until they are gone."""
        if (entry := self._find(node)) is None:
            return
        # Once the agent is reaped, its pid may be reused.
        if entry.process.returncode is None:
            entry.is_killed = True
            # The agent separately too: just after its start it does not lead its group yet.
            entry.process.kill()
            kill_group(entry.process.pid)
        await entry.gone.wait()

    async def drain(self, node: NodeId) -> None:
        """Make the workers hand back their samples and exit; kill those that take too long."""
        entry = self._find(node)
        if entry is not None and entry.process.returncode is None:
            entry.is_killed = True
            # Not SIGTERM, which may be a notice; the order waits in the pipe of an agent that has just started.
            self.order(node, DrainNode())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(entry.gone.wait(), self._settings.drain_s + REAP_S)
        await self.kill(node)

    async def stop(self) -> bool:
        """End every process; idempotent, and False if the machine was not claimed or is stopped already."""
        self._ahead.stop()
        await asyncio.gather(*(self.kill(node) for node in self.nodes()))
        if self._nursery is not None:
            close_stdin(self._nursery)
            await asyncio.to_thread(wait_or_kill, self._nursery)
            self._nursery = None
        if self._lock is None:
            return False
        for folder in (self.shared, self._stores, self._spill):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(self._lock)
        self._lock = None
        return True

    # -- places --------------------------------------------------------------------------------------------------------

    @property
    def logs(self) -> Path:
        return self._settings.folder / "logs"

    @property
    def _stores(self) -> Path:
        """Folder of all nodes' stores."""
        chosen = self._settings.store
        return self.shared if chosen is None else Path(chosen).resolve() / private_name(self._settings.folder)

    @property
    def _spill(self) -> Path:
        return self._settings.folder / SPILL

    @property
    def _nursery_socket(self) -> Path:
        return self.shared / "nursery.sock"

    def _find(self, node: NodeId) -> _Running | None:
        return next((entry for entry in self._agents.values() if entry.node == node), None)

    # -- processes -----------------------------------------------------------------------------------------------------

    async def ensure_nursery(self) -> None:
        """Start the nursery if it is not running; a dead one has taken its workers and their agents with it."""
        async with self._starting_nursery:
            if self._nursery is None or self._nursery.poll() is not None:
                await self._start_nursery()

    async def _start_nursery(self) -> None:
        settings, log = self._settings, self.logs / "nursery.log"
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

    def _start_agent(self, launch: AgentLaunch) -> subprocess.Popen[bytes]:
        path = self.shared / f"{launch.spec.name}.json"
        launch.farewell.unlink(missing_ok=True)
        write_private(path, msgspec.json.encode(launch))
        with self._log_of(launch.node).open("ab") as output:
            # Started from the event loop's thread, because the agent dies with the thread that started it.
            return subprocess.Popen(
                [sys.executable, "-m", "spotlight.node.agent", "--launch", str(path)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=os.environ | ENVIRONMENT,
            )

    def _log_of(self, node: NodeId) -> Path:
        return self.logs / f"{node}.log"

    def _agent_ended(self, entry: _Running, pidfd: int) -> None:
        """Kill the group of a dead agent before reaping it: until then its group number cannot be reused."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(pidfd)
        os.close(pidfd)
        kill_group(entry.process.pid)
        status = entry.process.wait()
        close_stdin(entry.process)
        cleanup = loop.create_task(self._clean_up(entry, status))
        self._cleanups.add(cleanup)
        cleanup.add_done_callback(self._cleanups.discard)

    async def _clean_up(self, entry: _Running, status: int) -> None:
        # Workers and spares are the nursery's children.
        await group_is_dead(entry.process.pid, self._nursery.pid if self._nursery is not None else None)
        name = entry.spec.name
        for copies in (self._stores / name, self._spill / name):
            shutil.rmtree(copies, ignore_errors=True)
        del self._agents[name]
        ran_s = asyncio.get_running_loop().time() - entry.started
        self._ended(AgentEnd(entry.node, entry.spec, status, entry.is_killed, ran_s, self._log_of(entry.node)))
        entry.gone.set()


def _claim(folder: Path, keep: Path | None) -> int:
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
