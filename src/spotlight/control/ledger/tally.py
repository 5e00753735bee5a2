"""What an audit counts beside what it finds wrong: samples by fate, replies refused, work done twice and why."""

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
    RefusalReason,
    Refused,
    Released,
    ReleaseReason,
    Reopened,
    Restored,
    RunResumed,
    WorkerLost,
)
from spotlight.core.work import Work

Name = TypeVar("Name", bound=str)
SHOWN = 20
"""Findings that are spelt out: one cause is likely behind the rest."""


@dataclass(frozen=True, kw_only=True)
class Waste:
    """Denoising steps of samples that were done again, by why."""

    with_notice: int = 0
    """Lost with a worker that had been given an imminent notice."""
    without_notice: int = 0
    """Lost with a worker that vanished or fell silent unannounced."""
    moved: int = 0
    """Lost when a straggler's or a drained worker's sample moved."""
    failed: int = 0
    """Done by attempts that raised, used wrong weights, or ended without a score."""
    restart: int = 0
    """In flights that went with the controller, as far as they had been told to it."""
    useful: int = 0
    """Steps of the samples that were accepted."""
    largest: int = 0
    """The most that one preemption cost one flight."""

    @property
    def redone(self) -> int:
        return self.with_notice + self.without_notice + self.moved + self.failed + self.restart

    @property
    def share(self) -> float:
        """Of all denoising steps."""
        total = self.useful + self.redone
        return self.redone / total if total else 0.0


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What an audit saw; `clean` if nothing is wrong."""

    findings: tuple[Finding, ...]
    records: int
    finished: bool
    issued: dict[Work, int]
    states: dict[SampleState, int]
    """Where the samples are now; they sum to all issued."""
    steps: int
    """Surviving optimizer steps."""
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
        """Nothing is wrong, and no group and no evaluation is missing."""
        return self.clean and self.gaps.whole

    def sentences(self) -> list[str]:
        """For people: what was counted, then what is wrong."""
        said = [
            f"{self.records} records: {sum(self.issued.values())} samples issued ({_told(self.issued)}); now "
            f"{_told(self.states)}.",
            f"{self.steps} optimizer steps, {self.steps_undone} more were undone and {self.restarts} times the "
            f"controller came back.",
            f"{self.workers_lost} workers lost, {self.workers_lost_noticed} of them with notice; "
            f"leases released: {_told(self.released)}; late or wrong replies refused: {_told(self.refused)}.",
            f"{self.waste.redone} denoising steps were done twice ({self.waste.share:.2%}): "
            f"{self.waste.without_notice} lost without notice, {self.waste.with_notice} with notice, "
            f"{self.waste.moved} moved, {self.waste.failed} failed, {self.waste.restart} by a restart; one preemption "
            f"cost a flight at most {self.waste.largest}.",
        ]
        said += self.gaps.sentences()
        if self.clean:
            return [*said, self.gaps.verdict()]
        said.append(f"NOT CLEAN: {len(self.findings)} findings.")
        said += [str(finding) for finding in self.findings[:SHOWN]]
        if len(self.findings) > SHOWN:
            said.append(f"... and {len(self.findings) - SHOWN} more.")
        return said


@dataclass
class RecordTally:
    """Counts as records pass by; each is counted before the history learns of it."""

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
                life = history.lives.get(event.request)
                if life is not None and event.step < life.kept:
                    self.waste["restart"] += life.kept - event.step
            case Released() as event:
                self._count_release(event, history)
            case Accepted() as event:
                life = history.lives.get(event.request)
                self.waste["useful"] += life.request.sample.sampling.steps if life is not None else 0
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
        life = history.lives.get(event.request)
        noticed = life is not None and life.worker in history.deadlines
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
            issued=dict(Counter(life.request.work for life in history.lives.values())),
            states=dict(Counter(life.state for life in history.lives.values())),
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


def _told(counts: Mapping[Name, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
