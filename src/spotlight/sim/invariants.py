"""What must hold in a simulated run: looked at after every event, at every restart, and at the end.

From the records, as they are written: the audit, and what only a simulator can know (what a worker was told, which
files were damaged). From the live objects, after every event: ledger, scheduler and machines agree on who makes what.
At a restart: the journal alone gives the ledger, the state, the planner and the meter that the dead controller had.
"""

import math
from collections import Counter
from collections.abc import Iterable

from spotlight.control.explore.planner import Planner
from spotlight.control.ledger import Ledger, SampleState
from spotlight.control.ledger.audit import Auditor
from spotlight.control.ledger.findings import Bounds
from spotlight.control.market.cost import CostMeter
from spotlight.control.run_state import RunState
from spotlight.controller.hub import Hub
from spotlight.core.events import (
    Accepted,
    Compared,
    Dropped,
    Evaluated,
    Fidelity,
    Holding,
    Issued,
    IterationDone,
    Leased,
    NoticeGiven,
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
from spotlight.sim.sim_world import SimWorld

Edge = tuple[SampleState, SampleState]
OUTSTANDING = (SampleState.QUEUED, SampleState.LEASED)
ONCE = (Compared, Selected, Evaluated, Fidelity, IterationDone)
"""Told once per iteration, whatever is repeated."""


class Broken(AssertionError):
    """An invariant does not hold."""


class Invariants:
    """One per run, over all lives of its controller."""

    def __init__(self, world: SimWorld, bounds: Bounds) -> None:
        self._world = world
        self._auditor = Auditor(bounds)
        self._seen = -1
        self._hub: Hub | None = None
        self._meter: CostMeter | None = None
        """Of this life of the controller, which keeps it up to date."""
        self.problems: list[str] = []
        self.edges: Counter[Edge] = Counter()
        self.theta = ""
        """Digest of the newest surviving step."""
        self.damaged: set[str] = set()
        """Files that were taken or altered on purpose."""
        self._requests: dict[RequestId, Request] = {}
        self._states: dict[RequestId, SampleState] = {}
        self._counts: Counter[SampleState] = Counter()
        self._steps: list[StepCommitted] = []
        self._accepted: dict[RequestId, Accepted] = {}
        self._published: dict[WeightsId, str] = {}
        self._holds: dict[WorkerId, dict[WeightsId, str]] = {}
        self._advised: set[WorkerId] = set()
        self._doomed: set[WorkerId] = set()
        self._refused: list[RequestId] = []
        """Of the event in progress."""
        self._told: set[tuple[type[object], int]] = set()

    def watch(self, run_log: RunLog, hub: Hub) -> None:
        """From now on, this life of the controller; what it told while it opened the journal is made up for."""
        for record in read(run_log.folder.journal, after=self._seen):
            self.see(record)
        run_log.observers.append(self.see)
        self._meter = run_log.meter
        self._hub = hub

    # -- records -------------------------------------------------------------------------------------------------------

    def see(self, record: Record) -> None:
        """Never raises: the controller must not be disturbed; `check` does."""
        self._seen = record.seq
        self.problems += [str(finding) for finding in self._auditor.check(record)]
        event = record.event
        match event:
            case Issued():
                for request in event.requests:
                    self._requests[request.id] = request
                    self._states[request.id] = SampleState.QUEUED
                self._counts[SampleState.QUEUED] += len(event.requests)
            case Leased():
                self._leased(event)
                self._go(event.request, SampleState.LEASED)
            case Released():
                self._go(event.request, SampleState.QUEUED)
            case Accepted():
                self._accepted[event.request] = event
                self._go(event.request, SampleState.ACCEPTED)
            case Dropped():
                self._go(event.request, SampleState.DROPPED)
            case Reopened():
                self._reopened(event)
                self._go(event.request, SampleState.QUEUED)
            case StepCommitted():
                self._committed(event)
            case Restored():
                for undone in [request for step in self._steps[event.step :] for request in step.requests]:
                    self._go(undone, SampleState.ACCEPTED)
                del self._steps[event.step :]
                self.theta = self._steps[-1].digest if self._steps else ""
            case Refused():
                self._refused.append(event.request)
            case Published():
                self._published[event.weights] = event.digest
            case WorkerJoined():
                self._holds[event.worker] = {}
            case WorkerLost():
                self._holds.pop(event.worker, None)
            case Holding():
                self._holds.setdefault(event.worker, {})[event.weights] = event.digest
            case NoticeGiven():
                # After an imminent one a worker may have what it finishes before the deadline; the audit checks that.
                (self._advised if event.kind is NoticeKind.ADVISORY else self._doomed).add(event.worker)
            case _:
                pass
        if isinstance(event, ONCE):
            key = (type(event), event.iteration)
            if key in self._told:
                self.problems.append(f"{type(event).__name__} of iteration {event.iteration} is told again")
            self._told.add(key)

    def _leased(self, event: Leased) -> None:
        request = self._requests[event.request]
        held = self._holds.get(event.worker)
        if held is None:
            self.problems.append(f"{event.request} is leased to {event.worker}, which is not there")
        elif held.get(request.weights) != self._published.get(request.weights):
            self.problems.append(f"{event.request} is leased to {event.worker}, which does not hold {request.weights}")
        if event.worker in self._advised - self._doomed and request.work is not Work.PREVIEW:
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
            self._go(request, SampleState.TRAINED)
            accepted = self._accepted[request]
            if not self._world.storage.is_whole(accepted.payload or "", accepted.payload_digest or ""):
                self.problems.append(f"step {event.step} trains {request} on other tensors than were accepted")

    def _go(self, request: RequestId, state: SampleState) -> None:
        before = self._states[request]
        self.edges[before, state] += 1
        self._counts[before] -= 1
        self._counts[state] += 1
        self._states[request] = state

    # -- live objects --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises Broken with the first problem there is."""
        if not self.problems and self._hub is not None:
            self._check_ledger(self._hub.dispatcher.ledger)
            self._check_leases(self._hub)
            self._check_refused()
        if self.problems:
            raise Broken(self.problems[0])

    def _check_ledger(self, ledger: Ledger) -> None:
        """What the ledger counts is what it holds, and what it told."""
        counts = ledger.counts()
        told = self._counts
        previews = {state: counts[state] - told[state] for state in SampleState}
        if any(count < 0 for count in previews.values()):
            self.problems.append(f"the ledger counts {dict(counts)}, but told of {dict(told)}")
        if previews[SampleState.TRAINED]:
            self.problems.append(f"{previews[SampleState.TRAINED]} samples are trained that no step names")

    def _check_refused(self) -> None:
        """A reply that was refused has changed nothing."""
        for request in self._refused:
            if self._states.get(request) is not SampleState.ACCEPTED:
                continue
            name, digest = self._accepted[request].payload, self._accepted[request].payload_digest
            if name and digest and name not in self.damaged and not self._world.storage.is_whole(name, digest):
                self.problems.append(f"a refused reply has altered {name}, the tensors of {request}")
        self._refused.clear()

    def _check_leases(self, hub: Hub) -> None:
        """Everything that is leased is leased to a worker that is there, and that was told and has not answered."""
        dispatcher = hub.dispatcher
        ledger, workers = dispatcher.ledger, sorted(dispatcher.directory.workers)
        leased = 0
        for worker in workers:
            owed = self._world.owed.get(worker, {})
            for request in ledger.leases_of(worker):
                leased += 1
                if owed.get(request) != ledger.attempt(request):
                    self.problems.append(
                        f"{request} attempt {ledger.attempt(request)} is leased to {worker}, which knows nothing of it"
                    )
        counts = ledger.counts()
        if leased != counts[SampleState.LEASED]:
            self.problems.append(f"{counts[SampleState.LEASED]} samples are leased, {leased} of them to known workers")
        waiting = sum(dispatcher.scheduler.waiting(work) for work in Work)
        if waiting != counts[SampleState.QUEUED]:
            self.problems.append(f"{counts[SampleState.QUEUED]} samples are queued, but {waiting} wait for a worker")
        if dispatcher.scheduler.workers() != workers:
            self.problems.append(f"the scheduler knows {dispatcher.scheduler.workers()}, the directory {workers}")

    # -- restarts ------------------------------------------------------------------------------------------------------

    def compare(self, run_log: RunLog) -> None:
        """The folds of a controller that is gone against those that its journal gives."""
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
        # A process that dies between telling and doing has told one event more than it has done.
        replays = [Ledger.replay(events), Ledger.replay(events[:-1])]
        if live not in [self._facts(replay, run_log.ledger) for replay in replays]:
            found = self._facts(replays[0], run_log.ledger)
            differ = [(mine, other) for mine, other in zip(live, found, strict=False) if mine != other][:3]
            self.problems.append(f"the journal gives another ledger than there was: {differ}")
        if self.problems:
            raise Broken(self.problems[0])

    def _facts(self, ledger: Ledger, known_to: Ledger) -> list[object]:
        """All that the journal can tell of it; what was retired is forgotten."""
        facts: list[object] = [ledger.steps, ledger.frontier]
        for request in self._followed(known_to):
            if request not in ledger:
                facts.append((request, None))
                continue
            state = ledger.state(request)
            facts.append((request, state, ledger.attempt(request), ledger.holder(request)))
            if state in (SampleState.ACCEPTED, SampleState.TRAINED):
                facts.append(repr(ledger.accepted(request)))
        return facts

    def _followed(self, ledger: Ledger) -> Iterable[RequestId]:
        return [request for request in self._requests if request in ledger]

    def finish(self) -> None:
        """The whole journal was looked at, record by record; nothing may have been found."""
        report = self._auditor.report()
        if not report.clean:
            raise Broken("\n".join(report.sentences()))
        unfinished = [request for request, state in self._states.items() if state in OUTSTANDING]
        if unfinished:
            raise Broken(f"the run is over, but these are not made: {unfinished[:3]}")
