"""Requests, results and hand-written journals for the tests of ledger and audit."""

from collections.abc import Sequence

from spotlight.control.ledger import Ledger
from spotlight.control.ledger.audit import audit
from spotlight.core.events import (
    SCHEMA,
    Accepted,
    AnyEvent,
    Issued,
    Leased,
    Published,
    Record,
    Released,
    RunStarted,
    RunStopped,
    StepCommitted,
)
from spotlight.core.types import Frontier, PromptId, Sample, Sampling, Size, Version, WorkerId
from spotlight.core.work import ReleaseReason, Request, RequestId, WeightsId, Work

SAMPLING = Sampling(steps=10, size=Size(32, 96))
W1, W2 = WorkerId("spot-1.1/0.1"), WorkerId("spot-2.1/0.1")
BASE = "digest-0"


def wanted(
    group: int = 0, seed: int = 0, *, iteration: int = 0, work: Work = Work.ROLLOUT, version: int = 0
) -> Request:
    prompt = PromptId(f"prompt-{iteration}-{group}")
    sample = Sample(prompt=prompt, seed=seed, sampling=SAMPLING, version=Version(version))
    return Request(work=work, iteration=iteration, group=group, sample=sample)


def grid(groups: int, seeds: int, *, iteration: int = 0, version: int = 0) -> list[Request]:
    return [
        wanted(group, seed, iteration=iteration, version=version) for group in range(groups) for seed in range(seeds)
    ]


def result(
    request: RequestId, attempt: int = 1, worker: WorkerId = W1, digest: str = BASE, payload: str | None = "payload"
) -> Accepted:
    return Accepted(
        request=request, attempt=attempt, worker=worker, digest=digest, reward=0.5, payload_digest=payload, steps=10
    )


def started() -> RunStarted:
    return RunStarted(
        schema=SCHEMA, run_seed=1, recipe="words-nft", config_digest="c", code="0.1.0", base_digest=BASE, wall=0.0
    )


def made(
    request: Request, attempt: int = 1, worker: WorkerId = W1, digest: str = BASE, payload: str | None = "payload"
) -> list[AnyEvent]:
    """A sample leased and accepted."""
    return [
        Leased(request=request.id, attempt=attempt, worker=worker),
        result(request.id, attempt, worker, digest, payload),
    ]


def issued(requests: Sequence[Request], positions: Sequence[int] = (0,)) -> Issued:
    return Issued(requests=tuple(requests), positions=tuple(positions))


def released(
    request: Request, attempt: int = 1, reason: ReleaseReason = ReleaseReason.LOST, step: int = 0, redone: int = 0
) -> Released:
    return Released(request=request.id, attempt=attempt, reason=reason, step=step, redone=redone)


def stepped(
    step: int, requests: Sequence[Request], position: int, holes: Sequence[int] = (), iteration: int = 0
) -> StepCommitted:
    return StepCommitted(
        step=step,
        iteration=iteration,
        update=0,
        requests=tuple(request.id for request in requests),
        frontier=Frontier(position, tuple(holes)),
        digest=f"theta-{step}",
    )


def published(version: int, step: int, digest: str | None = None) -> Published:
    return Published(weights=WeightsId(Version(version)), digest=digest or f"digest-{version}", step=step)


def records(events: Sequence[AnyEvent]) -> list[Record]:
    return [Record(seq, float(seq), event) for seq, event in enumerate(events)]


A, B = wanted(0, 0), wanted(0, 1)
AUDIT, EVALUATION = wanted(0, 7, work=Work.AUDIT), wanted(0, 8, work=Work.EVALUATION)
FINISHED = RunStopped(reason="done", finished=True)
PAIR = [started(), issued([A, B])]
"""One group of two is wanted."""
READY = [*PAIR, *made(A), *made(B)]
"""Both are accepted."""
TRAINED = [*READY, stepped(0, [A, B], 1)]


class EventLog(list):
    """A journal in memory."""

    def kinds(self) -> list[type]:
        return [type(event) for event in self]


def make(ledger: Ledger, *requests, worker=W1) -> None:
    for request in requests:
        attempt = ledger.lease(request.id, worker)
        assert ledger.accept(result(request.id, attempt, worker), BASE) is None


def train(ledger: Ledger, requests, step: int, iteration: int = 0) -> StepCommitted:
    frontier = ledger.frontier_after([request.id for request in requests])
    event = stepped(step, requests, frontier.position, frontier.holes, iteration)
    ledger.commit_step(event)
    return event


def findings(events, bounds=None):
    return audit(records(events), bounds).findings


def breaches(events, bounds=None):
    """(invariant, record number, samples) of each finding."""
    return [(found.invariant, found.seq, found.requests) for found in findings(events, bounds)]
