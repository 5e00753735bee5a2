"""A scripted run: the real control plane over simulated machines, in virtual time, with faults at named points.

with Story(spot=1) as story:
    story.until(lambda: story.recorded(Accepted))
    story.kill("spot-1")
    story.end()                    # restarts the controller if it died, and checks every invariant
"""

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from spotlight.config import RunConfig
from spotlight.control.ledger.audit import audit
from spotlight.control.ledger.findings import Bounds
from spotlight.control.ledger.states import OUTSTANDING
from spotlight.control.ledger.tally import AuditReport
from spotlight.core.errors import EnvironmentProblem, Stopped
from spotlight.core.events import AnyEvent, Issued, ProblemNoted, Record
from spotlight.core.journal import Disk, read
from spotlight.core.node_spec import NodeSpec
from spotlight.core.segments import list_segments
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind, Request, RequestId, SlotClass
from spotlight.folder import RunFolder
from spotlight.sim.controller import Controller, Ending, PowerCut
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.fault_policy import NoFaults, Tempo
from spotlight.sim.invariants import Broken, Invariants
from spotlight.sim.machine_settings import SimMachineSettings
from spotlight.sim.message_trace import MessageTrace
from spotlight.sim.sim_world import SimWorld
from spotlight.sim.storage import SimStorage
from spotlight.sim.virtual_loop import VirtualClock, VirtualLoop
from spotlight.wiring import Wired

Kind = TypeVar("Kind", bound=AnyEvent)
COMMIT_EVERY = 2
PATIENCE_S = 600.0


class ScriptedFaults(NoFaults):
    """Crashes workers at the requested points, once per request."""

    def __init__(self, tempo: Tempo) -> None:
        super().__init__(tempo)
        self.crashes: Counter[CrashPoint] = Counter()
        self.worker_crashes: list[tuple[CrashPoint, WorkerId]] = []
        """Crashes of one named worker."""
        self.freezes: dict[tuple[CrashPoint, WorkerId], Callable[[], None]] = {}
        self.passed: Counter[tuple[CrashPoint, WorkerId]] = Counter()
        """Times that a worker passed a point alive."""
        self.kinds: dict[int, str] = {}
        """GPU kinds by slot."""
        self.unscorable: set[str] = set()
        """Requests whose reward raises an error."""
        self.impossible: set[str] = set()
        """Requests whose every attempt fails."""
        self.confused: set[WorkerId] = set()
        """Workers that use other weights than they report."""
        self.damaging: Counter[str] = Counter()
        """Number of copies of weights that will be damaged, by the name of their node."""
        self.full: set[str] = set()
        """Names of nodes whose disk takes no more weights."""

    def should_crash(self, point: CrashPoint, worker: WorkerId) -> bool:
        if (point, worker) in self.worker_crashes:
            self.worker_crashes.remove((point, worker))
            return True
        if self.crashes[point]:
            self.crashes[point] -= 1
            return True
        self.freezes.pop((point, worker), lambda: None)()
        self.passed[point, worker] += 1
        return False

    def kind(self, worker: WorkerId) -> str:
        return self.kinds.get(slot_of(worker), "")

    def is_unscorable(self, request: Request) -> bool:
        return request.id in self.unscorable

    def fails(self, request: Request, attempt: int) -> bool:
        return request.id in self.impossible

    def copied(self, digest: str, node: NodeId) -> str:
        name = node.rpartition(".")[0]
        if name in self.full:
            raise EnvironmentProblem(f"the weights could not be copied to {node}: no space is left on it; free some.")
        if not self.damaging[name]:
            return digest
        self.damaging[name] -= 1
        return f"damaged {digest}"

    def misused(self, digest: str, worker: WorkerId) -> str:
        return f"not {digest}" if worker in self.confused else digest


def slot_of(worker: WorkerId) -> int:
    """Number of the worker's slot: 2 for `spot-1.1/2.3`."""
    return int(worker.rpartition("/")[2].partition(".")[0])


class When(StrEnum):
    BEFORE = "before the record"
    WITHIN = "in the middle of the record"
    AFTER = "after the record"


class FaultyDisk:
    """Crashes the controller around one record: the n-th of its kind from now."""

    def __init__(self, unplug: Callable[[], None]) -> None:
        self.torn = b""
        self._unplug = unplug
        self._armed: tuple[When, type[AnyEvent], int] | None = None

    def arm(self, when: When, kind: type[AnyEvent], number: int) -> None:
        self._armed = (when, kind, number)

    def disk(self) -> Disk:
        return Disk(write=self._write)

    def record_written(self, record: Record) -> None:
        if self._is_due((When.AFTER,), lambda kind: isinstance(record.event, kind)):
            self._crash()

    def _write(self, handle: int, data: bytes | memoryview) -> int:
        # A record's bytes hold the name of its event.
        when = self._armed[0] if self._armed is not None else None
        if self._is_due((When.BEFORE, When.WITHIN), lambda kind: kind.__name__.encode() in bytes(data)):
            self.torn = bytes(data[: len(data) - 3]) if when is When.WITHIN else b""
            self._crash()
        return os.write(handle, data)

    def _is_due(self, whens: tuple[When, ...], matches: Callable[[type[AnyEvent]], bool]) -> bool:
        if self._armed is None or self._armed[0] not in whens or not matches(self._armed[1]):
            return False
        when, kind, number = self._armed
        self._armed = (when, kind, number - 1) if number > 1 else None
        return number == 1

    def _crash(self) -> None:
        self._unplug()
        raise PowerCut


class StopRequest:
    """`loop.Limits` that stops the run once per request."""

    def __init__(self) -> None:
        self.is_open = False

    def check(self) -> None:
        if self.is_open:
            self.is_open = False
            raise Stopped("requested by the test.")


class Story:
    """One small deterministic run; `config` overrides sections of its recipe."""

    def __init__(self, spot: int = 2, rows: int = 4, tempo: Tempo | None = None, slots: int = 1, **config: Any) -> None:
        self.config = RunConfig.model_validate(
            {
                "iterations": 3,
                "rollout": {"prompts": 2, "group_size": 3, "steps": 6},
                "train": {"updates_per_iteration": 1},
                "eval": {"every": 10, "prompts": 2, "steps": 2},
                "explore": {"enabled": "on", "seeds": 4, "steps": 2, "audit_share": 0.01},
                "cluster": {"commit_every": COMMIT_EVERY, "heartbeat_s": 1.0, "silence_s": 8.0},
                "output": {"checkpoint_every": 2, "journal": {"sync": "never"}},
                "deterministic": True,
                **config,
            }
        )
        # As many slots as train: crews form on spot nodes alone.
        reserved = [
            msgspec.structs.replace(spec, rows=rows, slots=max(1, spec.trains))
            for spec in self.config.cluster.reserved_nodes()
        ]
        self.spots = [
            NodeSpec(name=f"spot-{n}", slot_class=SlotClass.SPOT, slots=slots, rows=rows) for n in range(1, spot + 1)
        ]
        self.specs = [*reserved, *self.spots]
        self.policy = ScriptedFaults(tempo or Tempo())
        self.events: list[AnyEvent] = []
        self.lives = 0
        """Lives of the controller so far."""
        self.expected_reason = ""
        """Part of the reason of an expected stop."""
        self._stop_request = StopRequest()

    def __enter__(self) -> Self:
        self._scratch = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.folder = RunFolder(Path(self._scratch.name))
        self._loop = VirtualLoop()
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._prepare())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
        asyncio.set_event_loop(None)
        self._scratch.cleanup()

    # -- actions -------------------------------------------------------------------------------------------------------

    def until(self, happened: Callable[[], object]) -> None:
        """Advance virtual time until `happened` is true."""
        self._loop.run_until_complete(self._until(lambda: bool(happened())))

    def wait(self, seconds: float) -> None:
        self._loop.run_until_complete(asyncio.sleep(seconds))

    def end(self) -> AuditReport:
        """Run to the end, through any number of restarts, and check every invariant."""
        self.until(lambda: self._controllers.done())
        self._controllers.result()
        self.invariants.finish()
        report = audit(read(self.folder.journal), self._bounds)
        assert report.clean, "\n".join(report.sentences())
        assert report.finished
        return report

    def crash_at(self, point: CrashPoint, worker: WorkerId | None = None) -> None:
        """Crash this worker, or the first one, that reaches the point."""
        if worker is None:
            self.policy.crashes[point] += 1
        else:
            self.policy.worker_crashes.append((point, worker))

    def freeze_at(self, point: CrashPoint, worker: WorkerId, seconds: float) -> None:
        """Freeze this worker at the point: it does not die and does not respond."""
        self.policy.freezes[point, worker] = lambda: self.world.freeze(worker, seconds)

    def crash_controller(self, when: When, kind: type[AnyEvent], number: int = 1) -> None:
        """Crash the controller around the n-th record of this kind from now."""
        self.disk.arm(when, kind, number)

    def crash_now(self) -> None:
        """Kill the controller and every node with it; the controller is restarted after a second."""
        self.world.unplug()
        self.hub.fail(PowerCut())

    def committed(self) -> dict[RequestId, int]:
        """Step of the newest commit of every unfinished sample that has one."""
        ledger, flights = self.hub.dispatcher.ledger, self.hub.dispatcher.flights
        issued = [request.id for event in self.recorded(Issued) for request in event.requests]
        unfinished = [request for request in issued if ledger.state(request) in OUTSTANDING]
        return {request: flights.newest(request)[0] for request in unfinished if flights.newest(request)[0]}

    def resume(self) -> None:
        """Start the controller again after an expected error."""

        async def start() -> None:
            self._controllers = asyncio.create_task(self._run_controllers())

        assert self._controllers.done()
        self._loop.run_until_complete(start())

    def stop(self) -> None:
        """Request a stop; the controller is restarted after it."""
        self._stop_request.is_open = True
        self.expected_reason = "requested by the test"

    def kill(self, name: str) -> None:
        self.world.kill(name)

    def kill_for_good(self, name: str) -> None:
        self.world.remove(name)
        self.world.kill(name)

    def add_node(self, name: str) -> None:
        (spec,) = (spec for spec in self.specs if spec.name == name)

        async def add() -> None:
            self.world.add(spec)

        self._loop.run_until_complete(add())

    def warn(self, name: str, kind: NoticeKind, seconds: float) -> None:
        self.world.warn(name, kind, seconds)

    def recorded(self, kind: type[Kind], **fields: object) -> list[Kind]:
        """Recorded events of this kind with these fields."""
        return [
            event
            for event in self.events
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
        ]

    def worker(self, name: str) -> WorkerId:
        """The current worker of a node with one slot."""
        (worker,) = self.world.nodes[name].worker_ids()
        return worker

    @property
    def problems(self) -> list[str]:
        """Problems in the journal."""
        return [event.problem for event in self.recorded(ProblemNoted)]

    @property
    def theta(self) -> str:
        return self.invariants.theta

    # -- internals -----------------------------------------------------------------------------------------------------

    @property
    def _bounds(self) -> Bounds:
        pipeline = self.config.pipeline
        return Bounds(
            max_lag=int(pipeline.asynchrony),
            max_stale_share=pipeline.stale_share,
            commit_every=COMMIT_EVERY,
            bit_exact=self.config.deterministic,
        )

    async def _prepare(self) -> None:
        self.trace = MessageTrace()
        self.storage = SimStorage()
        machines = SimMachineSettings.of(self.config)
        rewards = self.config.reward.rewards("simulated")
        exact = self.config.deterministic
        self.world = SimWorld(self.policy, self.storage, self.trace, exact, machines, rewards=rewards)
        self.invariants = Invariants(self.world, self._bounds)
        self.disk = FaultyDisk(self.world.unplug)
        self._moved = asyncio.Event()
        self._controllers = asyncio.create_task(self._run_controllers())

    async def _run_controllers(self) -> None:
        ending = None
        while ending is not Ending.FINISHED:
            self.lives += 1
            controller = Controller(self.config, self.folder, self.world, VirtualClock(self._loop), self.disk.disk())
            controller.limits = self._stop_request
            ending = await controller.live(self.specs, lambda wired, of=controller: self._ready(of, wired))
            self.invariants.compare(controller.run_log)
            assert not controller.reason or (self.expected_reason and self.expected_reason in controller.reason), (
                controller.reason
            )
            self._append_torn_record()
            await asyncio.sleep(1.0)

    def _ready(self, controller: Controller, wired: Wired) -> None:
        self.hub = wired.hub
        self.invariants.watch(controller.run_log, wired.hub)
        # Events written while the journal was opened had no observer.
        self.events += [record.event for record in read(self.folder.journal, after=len(self.events) - 1)]
        controller.run_log.observers += [lambda record: self.events.append(record.event), self.disk.record_written]
        self.world.checked = self._check

    def _check(self) -> None:
        self._moved.set()
        try:
            self.invariants.check()
        except Broken as broken:
            self.hub.fail(broken)

    def _append_torn_record(self) -> None:
        if self.disk.torn:
            with list_segments(self.folder.journal)[-1].open("ab") as file:
                file.write(self.disk.torn)
            self.disk.torn = b""

    async def _until(self, happened: Callable[[], bool]) -> None:
        async def wait_for_it() -> None:
            while not happened():
                self._moved.clear()
                waiting = asyncio.ensure_future(self._moved.wait())
                await asyncio.wait({waiting, self._controllers}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if self._controllers.done() and not happened():
                    self._controllers.result()
                    raise AssertionError(f"the run ended before the condition was true:\n{self.trace.last()}")

        try:
            await asyncio.wait_for(wait_for_it(), PATIENCE_S)
        except TimeoutError:
            raise AssertionError(
                f"the condition was not true within {PATIENCE_S:.0f} s:\n{self.trace.last()}"
            ) from None
