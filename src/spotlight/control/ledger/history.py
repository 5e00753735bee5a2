"""What a journal tells so far, kept apart from the Ledger so that the two can contradict each other.

Believes every record, sound or not: `invariants.py` looks at each one before it is added here. One pass; memory grows
with the number of samples, not of records.
"""

from dataclasses import dataclass, field

from spotlight.control.ledger.states import SampleState
from spotlight.core.events import (
    Accepted,
    Dropped,
    Issued,
    Leased,
    NoticeGiven,
    Published,
    Record,
    Released,
    Reopened,
    Restored,
    RunResumed,
    RunStarted,
    RunStopped,
    StepCommitted,
    Worked,
    WorkerLost,
)
from spotlight.core.types import WorkerId
from spotlight.core.work import NoticeKind, Policy, Request, RequestId, WeightsId, Work


@dataclass(slots=True)
class SampleLife:
    """One sample's life up to now."""

    request: Request
    state: SampleState = SampleState.QUEUED
    attempt: int = 0
    worker: WorkerId | None = None
    kept: int = 0
    """Steps that the next attempt need not redo."""
    made: tuple[str, str | None] | None = None
    """Digests of the weights and of the payload of its latest result."""
    step: int = -1
    """The optimizer step that trained it."""


GroupKey = tuple[int, int]
"""Iteration and group number of rollouts."""


@dataclass(slots=True)
class Step:
    """One surviving optimizer step."""

    lives: list[SampleLife]
    positions: list[int]


@dataclass(slots=True)
class WorkerTime:
    """Where a worker's time went, in total."""

    start: float
    end: float
    busy: float = 0.0


@dataclass
class History:
    """The facts of all records so far."""

    next_seq: int = 0
    at: float = 0.0
    lives: dict[RequestId, SampleLife] = field(default_factory=dict)
    groups: dict[GroupKey, list[SampleLife]] = field(default_factory=dict)
    places: dict[GroupKey, int] = field(default_factory=dict)
    """Place of each rollout group in the prompt order."""
    claims: dict[int, GroupKey] = field(default_factory=dict)
    """Who was issued each place last."""
    steps: list[Step] = field(default_factory=list)
    trained_places: set[int] = field(default_factory=set)
    base_digest: str | None = None
    published: dict[WeightsId, Published] = field(default_factory=dict)
    undone: set[WeightsId] = field(default_factory=set)
    """Published ones whose steps were undone since: they may be published again with other bytes."""
    newest_version: int = 0
    """Of the behaviour policies published in the surviving history."""
    deadlines: dict[WorkerId, float] = field(default_factory=dict)
    """Of imminent notices, in run seconds."""
    lost: set[WorkerId] = field(default_factory=set)
    leased: dict[RequestId, SampleLife] = field(default_factory=dict)
    spans: dict[WorkerId, WorkerTime] = field(default_factory=dict)
    progress_at: float = 0.0
    """When the last step was committed, or the run (re)started."""
    finished: bool = False

    def digest_of(self, weights: WeightsId) -> str | None:
        """What a sample of these weights must be made with; version 0 is the base unless it was published as well."""
        published = self.published.get(weights)
        if published is not None:
            return published.digest
        return self.base_digest if weights.version == 0 else None

    def group_alive(self, key: GroupKey) -> bool:
        return any(life.state is not SampleState.DROPPED for life in self.groups.get(key, ()))

    def groups_in(self, event: StepCommitted) -> list[GroupKey]:
        """The rollout groups that a step touches, each once."""
        found: dict[GroupKey, None] = {}
        for request in event.requests:
            life = self.lives.get(request)
            if life is not None and life.request.work is Work.ROLLOUT:
                found[(life.request.iteration, life.request.group)] = None
        return list(found)

    def add(self, record: Record) -> None:
        """Believe one more record."""
        self.next_seq, self.at = record.seq + 1, record.at
        match record.event:
            case Issued() as event:
                self._issue(event)
            case Leased() | Released() | Accepted() | Dropped() | Reopened() as event:
                life = self.lives.get(event.request)
                if life is not None:
                    self._live_on(life, event)
            case StepCommitted() as event:
                self._commit(event, record.at)
            case Restored() as event:
                self._restore(event)
            case Published() as event:
                self.published[event.weights] = event
                self.undone.discard(event.weights)
                if event.weights.policy is Policy.BEHAVIOUR:
                    self.newest_version = max(self.newest_version, event.weights.version)
            case NoticeGiven() as event if event.kind is NoticeKind.IMMINENT:
                self.deadlines[event.worker] = record.at + event.seconds
            case WorkerLost() as event:
                self.lost.add(event.worker)
            case Worked() as event:
                span = self.spans.setdefault(event.worker, WorkerTime(event.start, event.end))
                span.start, span.end = min(span.start, event.start), max(span.end, event.end)
                span.busy += event.end - event.start
            case RunStarted() as event:
                self.base_digest, self.progress_at = event.base_digest, record.at
            case RunResumed():
                self.progress_at = record.at
            case RunStopped() as event:
                self.finished = event.finished
            case _:
                pass

    def _issue(self, event: Issued) -> None:
        for request in event.requests:
            life = self.lives[request.id] = SampleLife(request)
            if request.work is not Work.ROLLOUT:
                continue
            key = (request.iteration, request.group)
            self.groups.setdefault(key, []).append(life)
            if request.group < len(event.positions):
                place = self.places[key] = event.positions[request.group]
                self.claims[place] = key

    def _commit(self, event: StepCommitted, at: float) -> None:
        lives = [self.lives[request] for request in event.requests if request in self.lives]
        for life in lives:
            life.state, life.step = SampleState.TRAINED, event.step
        places = [self.places[key] for key in self.groups_in(event) if key in self.places]
        self.trained_places.update(places)
        self.steps.append(Step(lives, places))
        self.progress_at = at

    def _restore(self, event: Restored) -> None:
        for step in self.steps[event.step :]:
            for life in step.lives:
                life.state, life.step = SampleState.ACCEPTED, -1
            self.trained_places.difference_update(step.positions)
        del self.steps[event.step :]
        self.undone.update(weights for weights, told in self.published.items() if told.step > event.step)
        surviving = (weights for weights in self.published if weights not in self.undone)
        self.newest_version = max((w.version for w in surviving if w.policy is Policy.BEHAVIOUR), default=0)

    def _live_on(self, life: SampleLife, event: Leased | Released | Accepted | Dropped | Reopened) -> None:
        self.leased.pop(event.request, None)
        life.worker = None
        match event:
            case Leased():
                life.state, life.attempt, life.worker = SampleState.LEASED, event.attempt, event.worker
                self.leased[event.request] = life
            case Released():
                life.state, life.kept = SampleState.QUEUED, event.step
            case Accepted():
                life.state, life.kept = SampleState.ACCEPTED, 0
                life.made = (event.digest, event.payload_digest)
            case Dropped():
                life.state = SampleState.DROPPED
            case Reopened():
                life.state = SampleState.QUEUED
