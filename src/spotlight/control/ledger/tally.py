"""Counts of an audit beside its findings: samples by state, refused replies, redone work by cause."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from spotlight.control.ledger.findings import Finding
from spotlight.control.ledger.gaps import Gaps
from spotlight.control.ledger.history import History
from spotlight.control.ledger.states import SampleState
from spotlight.core.events import (
    Accepted,
    Leased,
    Record,
    Refused,
    Released,
    Reopened,
    Restored,
    RunResumed,
    WorkerLost,
)
from spotlight.core.work import RefusalReason, ReleaseReason, Work

Name = TypeVar("Name", bound=str)
SHOWN = 20
"""Number of findings that are listed; the rest likely has the same cause."""


@dataclass(frozen=True, kw_only=True)
class Waste:
    """Redone denoising steps, by cause."""

    with_notice: int = 0
    """Steps lost with a worker that had an imminent notice."""
    without_notice: int = 0
    """Steps lost with a worker that died or became silent without notice."""
    moved: int = 0
    """Steps lost when the sample of a straggler or drained worker moved."""
    failed: int = 0
    """Steps of attempts that raised, used wrong weights, or ended without a score."""
    restart: int = 0
    """Reported steps of flights that were lost with the controller."""
    useful: int = 0
    """Steps of accepted samples."""
    largest: int = 0
    """Largest number of steps that one preemption cost one flight."""

    @property
    def redone(self) -> int:
        return self.with_notice + self.without_notice + self.moved + self.failed + self.restart

    @property
    def share(self) -> float:
        """Redone share of all denoising steps."""
        total = self.useful + self.redone
        return self.redone / total if total else 0.0


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """Result of an audit; `clean` if it has no findings."""

    findings: tuple[Finding, ...]
    records: int
    finished: bool
    issued: dict[Work, int]
    states: dict[SampleState, int]
    """Number of samples per state; their sum is the number of issued samples."""
    steps: int
    """Number of optimizer steps that were not undone."""
    steps_undone: int
    reopened: int
    refused: dict[RefusalReason, int]
    released: dict[ReleaseReason, int]
    workers_lost: int
    workers_lost_noticed: int
    restarts: int
    waste: Waste
    gaps: Gaps

    @property
    def clean(self) -> bool:
        return not self.findings

    @property
    def whole(self) -> bool:
        """True if there are no findings and no group or evaluation is missing."""
        return self.clean and self.gaps.whole

    def sentences(self) -> list[str]:
        """Text of the report: the counts, then the findings."""
        lines = [
            f"{self.records} records: {sum(self.issued.values())} samples issued ({_listed(self.issued)}); now "
            f"{_listed(self.states)}.",
            f"{self.steps} optimizer steps, {self.steps_undone} more undone; {self.restarts} restarts of the "
            f"controller.",
            f"{self.workers_lost} workers lost, {self.workers_lost_noticed} of them with notice; "
            f"leases released: {_listed(self.released)}; late or wrong replies refused: {_listed(self.refused)}.",
            f"{self.waste.redone} denoising steps redone ({self.waste.share:.2%}): "
            f"{self.waste.without_notice} lost without notice, {self.waste.with_notice} with notice, "
            f"{self.waste.moved} moved, {self.waste.failed} failed, {self.waste.restart} by a restart; one preemption "
            f"cost a flight at most {self.waste.largest}.",
        ]
        lines += self.gaps.sentences()
        if self.clean:
            return [*lines, self.gaps.verdict()]
        lines.append(f"NOT CLEAN: {len(self.findings)} findings.")
        lines += [str(finding) for finding in self.findings[:SHOWN]]
        if len(self.findings) > SHOWN:
            lines.append(f"... and {len(self.findings) - SHOWN} more.")
        return lines


@dataclass
class RecordTally:
    """Running counts; each record is counted before it is added to the history."""

    records: int = 0
    steps_undone: int = 0
    reopened: int = 0
    restarts: int = 0
    workers_lost: int = 0
    workers_lost_noticed: int = 0
    gaps: Gaps = field(default_factory=Gaps)
    refused: Counter[RefusalReason] = field(default_factory=Counter)
    released: Counter[ReleaseReason] = field(default_factory=Counter)
    waste: Counter[str] = field(default_factory=Counter)
    largest: int = 0

    def count(self, record: Record, history: History) -> None:
        self.records += 1
        self.gaps.count(record.event)
        match record.event:
            case Leased() as event:
                sample = history.samples.get(event.request)
                if sample is not None and event.step < sample.kept:
                    self.waste["restart"] += sample.kept - event.step
            case Released() as event:
                self._count_release(event, history)
            case Accepted() as event:
                sample = history.samples.get(event.request)
                self.waste["useful"] += sample.request.sample.sampling.steps if sample is not None else 0
            case Refused() as event:
                self.refused[event.reason] += 1
            case Reopened():
                self.reopened += 1
            case Restored() as event:
                self.steps_undone += max(0, len(history.steps) - event.step)
            case RunResumed():
                self.restarts += 1
            case WorkerLost() as event:
                self.workers_lost += 1
                self.workers_lost_noticed += event.noticed or event.worker in history.deadlines
            case _:
                pass

    def _count_release(self, event: Released, history: History) -> None:
        self.released[event.reason] += 1
        sample = history.samples.get(event.request)
        noticed = sample is not None and sample.worker in history.deadlines
        match event.reason:
            case ReleaseReason.RESTART:
                cause = "restart"
            case ReleaseReason.FAILED | ReleaseReason.UNSCORED:
                cause = "failed"
            case ReleaseReason.LOST | ReleaseReason.SILENT:
                cause = "with_notice" if noticed else "without_notice"
                self.largest = max(self.largest, event.redone)
            case ReleaseReason.HANDED_BACK | ReleaseReason.RECALLED:
                cause = "with_notice" if noticed else "moved"
        self.waste[cause] += event.redone

    def report(self, history: History, findings: tuple[Finding, ...]) -> AuditReport:
        return AuditReport(
            findings=findings,
            records=self.records,
            finished=history.finished,
            issued=dict(Counter(sample.request.work for sample in history.samples.values())),
            states=dict(Counter(sample.state for sample in history.samples.values())),
            steps=len(history.steps),
            steps_undone=self.steps_undone,
            reopened=self.reopened,
            refused=dict(self.refused),
            released=dict(self.released),
            workers_lost=self.workers_lost,
            workers_lost_noticed=self.workers_lost_noticed,
            restarts=self.restarts,
            waste=Waste(largest=self.largest, **self.waste),
            gaps=self.gaps,
        )


def _listed(counts: Mapping[Name, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
