"""Invariants of a simulated run, checked after every event, at every restart and at the end.

Records, as they are written: the audit, and what only a simulator has (messages in transit, files).
Live objects, after every event: ledger, scheduler and machines agree on the worker of each sample, and no stored file
was replaced by another.
Restarts: the journal alone gives the ledger, state, planner and meter of the dead controller.
"""

import math
from collections import Counter
from collections.abc import Iterable

import msgspec

from spotlight.control.explore.planner import Planner
from spotlight.control.ledger import Ledger, SampleState
from spotlight.control.ledger.audit import Auditor
from spotlight.control.ledger.findings import Bounds
from spotlight.control.market.cost import CostMeter
from spotlight.control.run_state import RunState
from spotlight.control.scheduler.notices import STANDINGS
from spotlight.control.scheduler.state import Standing
from spotlight.controller.hub import Hub
from spotlight.core.events import (
    Accepted,
    Checkpointed,
    Compared,
    Dropped,
    Evaluated,
    Fidelity,
    Holding,
    Issued,
    IterationDone,
    Leased,
    NoticeGiven,
    NoticeWithdrawn,
    Published,
    Record,
    Refused,
    Released,
    Reopened,
    Restored,
    Selected,
    StepCommitted,
    WorkerJoined,
    WorkerLost,
)
from spotlight.core.journal import read
from spotlight.core.types import WorkerId
from spotlight.core.work import NoticeKind, Request, RequestId, WeightsId, Work
from spotlight.run_log import RunLog
from spotlight.sim.crash_points import Broken
from spotlight.sim.flight_checks import FlightChecks
from spotlight.sim.numerics import TrainedState
from spotlight.sim.sim_world import SimWorld

Edge = tuple[SampleState, SampleState]
OUTSTANDING = (SampleState.QUEUED, SampleState.LEASED)
ONCE = (Compared, Selected, Evaluated, Fidelity, IterationDone)
"""Events recorded once per iteration, also when the iteration is repeated."""


class Invariants:
    """One per run, over all lives of its controller."""

    def __init__(self, world: SimWorld, bounds: Bounds) -> None:
        self._world = world
        self._auditor = Auditor(bounds)
        self._seen = -1
        self._hub: Hub | None = None
        self._meter: CostMeter | None = None
        """The live controller's meter."""
        self.problems: list[str] = []
        self.edges: Counter[Edge] = Counter()
        self.theta = ""
        """Digest of the newest update that was not undone."""
        self.damaged: set[str] = set()
        """Files that a fault removed or altered."""
        self._requests: dict[RequestId, Request] = {}
        self._states: dict[RequestId, SampleState] = {}
        self._counts: Counter[SampleState] = Counter()
        self._steps: list[StepCommitted] = []
        self._accepted: dict[RequestId, Accepted] = {}
        self._published: dict[WeightsId, str] = {}
        self._holds: dict[WorkerId, dict[WeightsId, str]] = {}
        self._noticed: dict[WorkerId, NoticeKind] = {}
        """Notices in force."""
        self._refused: list[RequestId] = []
        """Refused requests since the last check."""
        self._emitted: set[tuple[type[object], int]] = set()
        self._flights = FlightChecks(world.storage)

    @property
    def steps(self) -> tuple[StepCommitted, ...]:
        """Updates that were not undone."""
        return tuple(self._steps)

    def watch(self, run_log: RunLog, hub: Hub) -> None:
        """Observe this life of the controller, including the records from opening its journal."""
        for record in read(run_log.folder.journal, after=self._seen):
            self.observe(record)
        run_log.observers.append(self.observe)
        self._meter = run_log.meter
        self._hub = hub
        unfinished = {request: self._requests[request].weights for request in self._outstanding()}
        self._flights.resumed(hub.dispatcher.flights, unfinished, self.damaged)

    # -- records -------------------------------------------------------------------------------------------------------

    def observe(self, record: Record) -> None:
        """Collect problems; `check` raises them, because an observer must not disturb the controller."""
        self._seen = record.seq
        self.problems += [str(finding) for finding in self._auditor.check(record)]
        event = record.event
        self._flights.observe(event)
        match event:
            case Issued():
                for request in event.requests:
                    self._requests[request.id] = request
                    self._states[request.id] = SampleState.QUEUED
                self._counts[SampleState.QUEUED] += len(event.requests)
            case Leased():
                self._leased(event)
                self._move(event.request, SampleState.LEASED)
            case Released():
                self._move(event.request, SampleState.QUEUED)
            case Accepted():
                self._accepted[event.request] = event
                self._move(event.request, SampleState.ACCEPTED)
            case Dropped():
                self._move(event.request, SampleState.DROPPED)
            case Reopened():
                self._reopened(event)
                self._move(event.request, SampleState.QUEUED)
            case StepCommitted():
                self._committed(event)
            case Restored():
                for undone in [request for step in self._steps[event.step :] for request in step.requests]:
                    self._move(undone, SampleState.ACCEPTED)
                del self._steps[event.step :]
                self.theta = self._steps[-1].digest if self._steps else ""
            case Checkpointed():
                self._checkpointed(event)
            case Refused():
                self._refused.append(event.request)
            case Published():
                self._published[event.weights] = event.digest
            case WorkerJoined():
                self._holds[event.worker] = {}
            case WorkerLost():
                self._holds.pop(event.worker, None)
                self._noticed.pop(event.worker, None)
                self._lost(event)
            case Holding():
                self._holds.setdefault(event.worker, {})[event.weights] = event.digest
                self._held(event)
            case NoticeGiven():
                # After an imminent notice a worker may hold leases that end before the deadline; the audit checks that.
                self._noticed[event.worker] = event.kind
            case NoticeWithdrawn():
                if self._noticed.pop(event.worker, None) is None:
                    self.problems.append(f"the notice of {event.worker} is withdrawn, though it has none")
            case _:
                pass
        if isinstance(event, ONCE):
            key = (type(event), event.iteration)
            if key in self._emitted:
                self.problems.append(f"{type(event).__name__} of iteration {event.iteration} is recorded again")
            self._emitted.add(key)

    def _lost(self, event: WorkerLost) -> None:
        node = event.worker.partition("/")[0]
        if event.cause == "silent" and self._hub is not None and node in self._hub.unreachable:
            self.problems.append(f"{event.worker} is fenced, though only its node's connection is broken")

    def _held(self, event: Holding) -> None:
        applied = self._world.applied(event.worker, event.weights)
        if applied is not None and applied != event.digest:
            self.problems.append(f"{event.worker} reports {event.digest} as {event.weights}, but has applied {applied}")

    def _leased(self, event: Leased) -> None:
        request = self._requests[event.request]
        held = self._holds.get(event.worker)
        if held is None:
            self.problems.append(f"{event.request} is leased to {event.worker}, which is not there")
        elif held.get(request.weights) != self._published.get(request.weights):
            self.problems.append(f"{event.request} is leased to {event.worker}, which does not hold {request.weights}")
        if self._noticed.get(event.worker) is NoticeKind.ADVISORY and request.work is not Work.PREVIEW:
            self.problems.append(f"{event.request} is leased to {event.worker}, which may only preview")

    def _reopened(self, event: Reopened) -> None:
        accepted = self._accepted[event.request]
        if accepted.payload not in self.damaged and math.isfinite(accepted.reward):
            self.problems.append(
                f"{event.request} is made again although it has a score and its file {accepted.payload} is whole"
            )

    def _committed(self, event: StepCommitted) -> None:
        self._steps.append(event)
        self.theta = event.digest
        for request in event.requests:
            self._move(request, SampleState.TRAINED)
            accepted = self._accepted[request]
            if not self._world.storage.is_whole(accepted.payload or "", accepted.payload_digest or ""):
                self.problems.append(f"step {event.step} trains {request} on other tensors than were accepted")

    def _checkpointed(self, event: Checkpointed) -> None:
        """The file has the state after exactly the steps that its record names."""
        kept = msgspec.msgpack.decode(self._world.storage.checkpoints[event.path], type=TrainedState)
        theta = self._steps[event.step - 1].digest
        if (kept.steps, kept.theta) != (event.step, theta):
            self.problems.append(
                f"{event.path} has the weights {kept.theta} of {kept.steps} steps, not {theta} of {event.step}"
            )

    def _move(self, request: RequestId, state: SampleState) -> None:
        before = self._states[request]
        self.edges[before, state] += 1
        self._counts[before] -= 1
        self._counts[state] += 1
        self._states[request] = state

    # -- live objects --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise Broken with the first problem."""
        if not self.problems and self._hub is not None:
            self._check_ledger(self._hub.dispatcher.ledger)
            self._check_leases(self._hub)
            self._check_notices(self._hub)
            self._check_refused()
        self.problems += self._flights.problems
        if self._world.storage.replaced:
            self.problems.append(f"the tensors in {self._world.storage.replaced[0]} were replaced by others")
        if self.problems:
            raise Broken(self.problems[0])

    def _check_ledger(self, ledger: Ledger) -> None:
        """The ledger's counts agree with the records."""
        counts = ledger.counts()
        recorded = self._counts
        previews = {state: counts[state] - recorded[state] for state in SampleState}
        if any(count < 0 for count in previews.values()):
            self.problems.append(f"the ledger counts {dict(counts)}, but the records give {dict(recorded)}")
        if previews[SampleState.TRAINED]:
            self.problems.append(f"{previews[SampleState.TRAINED]} samples are trained that no step names")

    def _check_refused(self) -> None:
        """A refused reply changes no file."""
        for request in self._refused:
            if self._states.get(request) is not SampleState.ACCEPTED:
                continue
            name, digest = self._accepted[request].payload, self._accepted[request].payload_digest
            if name and digest and name not in self.damaged and not self._world.storage.is_whole(name, digest):
                self.problems.append(f"a refused reply has altered {name}, the tensors of {request}")
        self._refused.clear()

    def _check_leases(self, hub: Hub) -> None:
        """Every lease belongs to a present worker that was sent the grant and has not replied."""
        dispatcher = hub.dispatcher
        ledger, workers = dispatcher.ledger, sorted(dispatcher.directory.workers)
        leased = 0
        for worker in workers:
            owed = self._world.owed.get(worker, {})
            for request in ledger.leases_of(worker):
                leased += 1
                if owed.get(request) != ledger.attempt(request):
                    self.problems.append(
                        f"{request} attempt {ledger.attempt(request)} is leased to {worker}, which has no grant for it"
                    )
        counts = ledger.counts()
        if leased != counts[SampleState.LEASED]:
            self.problems.append(f"{counts[SampleState.LEASED]} samples are leased, {leased} of them to known workers")
        waiting = sum(dispatcher.scheduler.waiting(work) for work in Work)
        if waiting != counts[SampleState.QUEUED]:
            self.problems.append(f"{counts[SampleState.QUEUED]} samples are queued, but {waiting} wait for a worker")
        if dispatcher.scheduler.workers() != workers:
            self.problems.append(f"the scheduler has {dispatcher.scheduler.workers()}, the directory {workers}")

    def _check_notices(self, hub: Hub) -> None:
        """Every worker is used by its node's notice in force, and as always once it is withdrawn; records agree."""
        scheduler = hub.dispatcher.scheduler
        for worker, known in hub.dispatcher.directory.workers.items():
            kind, standing = self._world.warned.get(known.node), scheduler.standing(worker)
            if standing not in (STANDINGS[kind], Standing.DRAINING):
                self.problems.append(f"{worker} is {standing.value}, but the notice in force of {known.node} is {kind}")
            if self._noticed.get(worker) is not kind:
                self.problems.append(f"{worker} has the notice {kind}, but its record is {self._noticed.get(worker)}")

    # -- restarts ------------------------------------------------------------------------------------------------------

    def compare(self, run_log: RunLog) -> None:
        """Compare the state of an ended controller with the state that its journal gives."""
        if self._hub is not None:
            self._flights.ended(self._hub.dispatcher.flights, self._outstanding())
        meter, self._meter, self._hub = self._meter, None, None
        records = list(read(run_log.folder.journal))
        events = [record.event for record in records]
        state = RunState.replay(events)
        planner = Planner.replay(run_log.config.explore, events)
        if repr(state) != repr(run_log.state):
            self.problems.append(f"the journal gives the state {state}, but it was {run_log.state}")
        if repr(planner.state) != repr(run_log.planner.state):
            self.problems.append(f"the journal gives the planner {planner.state}, but it was {run_log.planner.state}")
        if meter is not None and meter != CostMeter.replay(records):
            self.problems.append("the journal gives other slot-seconds than the meter had")
        live = self._facts(run_log.ledger, run_log.ledger)
        # A process that dies between recording and applying an event has recorded one more than it applied.
        replays = [Ledger.replay(events), Ledger.replay(events[:-1])]
        if live not in [self._facts(replay, run_log.ledger) for replay in replays]:
            found = self._facts(replays[0], run_log.ledger)
            differ = [(mine, other) for mine, other in zip(live, found, strict=False) if mine != other][:3]
            self.problems.append(f"the journal gives another ledger than there was: {differ}")
        if self.problems:
            raise Broken(self.problems[0])

    def _facts(self, ledger: Ledger, known_to: Ledger) -> list[object]:
        """Everything that the journal determines about the requests still in the ledger."""
        facts: list[object] = [ledger.steps, ledger.frontier]
        for request in self._known_requests(known_to):
            if request not in ledger:
                facts.append((request, None))
                continue
            state = ledger.state(request)
            facts.append((request, state, ledger.attempt(request), ledger.holder(request)))
            if state in (SampleState.ACCEPTED, SampleState.TRAINED):
                facts.append(repr(ledger.accepted(request)))
        return facts

    def _outstanding(self) -> list[RequestId]:
        return [request for request, state in self._states.items() if state in OUTSTANDING]

    def _known_requests(self, ledger: Ledger) -> Iterable[RequestId]:
        return [request for request in self._requests if request in ledger]

    def finish(self) -> None:
        """Raise Broken if the audit of the whole journal has findings or a request is unfinished."""
        report = self._auditor.report()
        if not report.clean:
            raise Broken("\n".join(report.sentences()))
        unfinished = self._outstanding()
        if unfinished:
            raise Broken(f"the run is over, but these requests are unfinished: {unfinished[:3]}")
