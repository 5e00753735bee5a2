"""State of a run from its journal so far, independent of the Ledger so that the audit can find the Ledger's defects.

Adds every record, valid or not: `sample_checks.py` and `step_checks.py` check it before. One pass; memory grows with
the number of samples, not of records.
"""

from dataclasses import dataclass, field

from spotlight.control.ledger.states import SampleState
from spotlight.core.events import (
    Accepted,
    Dropped,
    Issued,
    Leased,
    NodeJoined,
    NoticeGiven,
    NoticeWithdrawn,
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
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind, Policy, Request, RequestId, WeightsId, Work


@dataclass(slots=True)
class SampleHistory:
    """State of one sample after the records so far."""

    request: Request
    state: SampleState = SampleState.QUEUED
    attempt: int = 0
    worker: WorkerId | None = None
    kept: int = 0
    """Step at which the next attempt resumes."""
    made: tuple[str, str | None] | None = None
    """Digests of the weights and of the payload of the latest result."""
    step: int = -1
    """Optimizer step that trained the sample."""


GroupKey = tuple[int, int]
"""Iteration and group number of rollouts."""


@dataclass(slots=True)
class TrainedStep:
    """One optimizer step that was not undone."""

    samples: list[SampleHistory]
    positions: list[int]


@dataclass(slots=True)
class WorkerTime:
    """First and last second of a worker's spans, and the sum of their lengths."""

    start: float
    end: float
    busy: float = 0.0


@dataclass
class History:
    """The facts of all records so far."""

    next_seq: int = 0
    at: float = 0.0
    samples: dict[RequestId, SampleHistory] = field(default_factory=dict)
    groups: dict[GroupKey, list[SampleHistory]] = field(default_factory=dict)
    positions: dict[GroupKey, int] = field(default_factory=dict)
    """Position of each rollout group in the prompt order."""
    claims: dict[int, GroupKey] = field(default_factory=dict)
    """Group that was issued last for each position."""
    steps: list[TrainedStep] = field(default_factory=list)
    trained_positions: set[int] = field(default_factory=set)
    base_digest: str | None = None
    published: dict[WeightsId, Published] = field(default_factory=dict)
    undone: set[WeightsId] = field(default_factory=set)
    """Published weights whose steps were undone since: they may be published again with other bytes."""
    newest_version: int = 0
    """Newest published behaviour policy in the surviving history."""
    deadlines: dict[WorkerId, float] = field(default_factory=dict)
    """Deadlines of imminent notices in force, in run seconds."""
    lost: set[WorkerId] = field(default_factory=set)
    far: set[NodeId] = field(default_factory=set)
    """Nodes on other machines than the run's folder."""
    leased: dict[RequestId, SampleHistory] = field(default_factory=dict)
    spans: dict[WorkerId, WorkerTime] = field(default_factory=dict)
    progress_at: float = 0.0
    """Run time of the last committed step or (re)start."""
    finished: bool = False

    def digest_of(self, weights: WeightsId) -> str | None:
        """Digest that samples of these weights must have; version 0 is the base unless it was published as well."""
        published = self.published.get(weights)
        if published is not None:
            return published.digest
        return self.base_digest if weights.version == 0 else None

    def group_alive(self, key: GroupKey) -> bool:
        return any(sample.state is not SampleState.DROPPED for sample in self.groups.get(key, ()))

    def groups_in(self, event: StepCommitted) -> list[GroupKey]:
        """Rollout groups of a step, each once."""
        found: dict[GroupKey, None] = {}
        for request in event.requests:
            sample = self.samples.get(request)
            if sample is not None and sample.request.work is Work.ROLLOUT:
                found[(sample.request.iteration, sample.request.group)] = None
        return list(found)

    def add(self, record: Record) -> None:
        """Apply one more record."""
        self.next_seq, self.at = record.seq + 1, record.at
        match record.event:
            case Issued() as event:
                self._issue(event)
            case Leased() | Released() | Accepted() | Dropped() | Reopened() as event:
                sample = self.samples.get(event.request)
                if sample is not None:
                    self._update_sample(sample, event)
            case NodeJoined(node=node, is_far=True):
                self.far.add(node)
            case StepCommitted() as event:
                self._commit(event, record.at)
            case Restored() as event:
                self._restore(event)
            case Published() as event:
                self.published[event.weights] = event
                self.undone.discard(event.weights)
                if event.weights.policy is Policy.BEHAVIOUR:
                    self.newest_version = max(self.newest_version, event.weights.version)
            case NoticeGiven() as event if event.kind is NoticeKind.IMMINENT and event.seconds is not None:
                self.deadlines[event.worker] = record.at + event.seconds
            case NoticeGiven(worker=worker) | NoticeWithdrawn(worker=worker):
                self.deadlines.pop(worker, None)
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
            sample = self.samples[request.id] = SampleHistory(request)
            if request.work is not Work.ROLLOUT:
                continue
            key = (request.iteration, request.group)
            self.groups.setdefault(key, []).append(sample)
            if request.group < len(event.positions):
                position = self.positions[key] = event.positions[request.group]
                self.claims[position] = key

    def _commit(self, event: StepCommitted, at: float) -> None:
        samples = [self.samples[request] for request in event.requests if request in self.samples]
        for sample in samples:
            sample.state, sample.step = SampleState.TRAINED, event.step
        positions = [self.positions[key] for key in self.groups_in(event) if key in self.positions]
        self.trained_positions.update(positions)
        self.steps.append(TrainedStep(samples, positions))
        self.progress_at = at

    def _restore(self, event: Restored) -> None:
        for step in self.steps[event.step :]:
            for sample in step.samples:
                sample.state, sample.step = SampleState.ACCEPTED, -1
            self.trained_positions.difference_update(step.positions)
        del self.steps[event.step :]
        self.undone.update(weights for weights, publication in self.published.items() if publication.step > event.step)
        surviving = (weights for weights in self.published if weights not in self.undone)
        self.newest_version = max((w.version for w in surviving if w.policy is Policy.BEHAVIOUR), default=0)

    def _update_sample(self, sample: SampleHistory, event: Leased | Released | Accepted | Dropped | Reopened) -> None:
        self.leased.pop(event.request, None)
        sample.worker = None
        match event:
            case Leased():
                sample.state, sample.attempt, sample.worker = SampleState.LEASED, event.attempt, event.worker
                self.leased[event.request] = sample
            case Released():
                sample.state, sample.kept = SampleState.QUEUED, event.step
            case Accepted():
                sample.state, sample.kept = SampleState.ACCEPTED, 0
                sample.made = (event.digest, event.payload_digest)
            case Dropped():
                sample.state = SampleState.DROPPED
            case Reopened():
                sample.state = SampleState.QUEUED
