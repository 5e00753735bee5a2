"""The ledger's data and all its read access; only the Ledger changes it.

Invariant: the running counts (outstanding, counts, claims) equal a full count over the entries
(tests/property/test_ledger_property.py).
"""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import NamedTuple

from spotlight.control.ledger import frontier as frontiers
from spotlight.control.ledger.entries import Batch, Entry, Group
from spotlight.control.ledger.states import OUTSTANDING, InvariantBroken, SampleState
from spotlight.core.events import Accepted, StepCommitted
from spotlight.core.types import Frontier, WorkerId
from spotlight.core.work import Request, RequestId, WeightsId, Work

LEASED = SampleState.LEASED
EXACT = ROLLOUT, AUDIT = Work.ROLLOUT, Work.AUDIT


class ResumeLimit(NamedTuple):
    """The newest flight from which a sample may be continued."""

    attempt: int | None
    """The live attempt, of which every commit counts; None: no attempt is live."""
    step: int
    """Step up to which commits of earlier attempts count."""
    origin: int
    """The attempt that started at step 0: commits of those before it never count."""


class Book:
    """Read access to all samples of a run."""

    def __init__(self) -> None:
        self._entries: dict[RequestId, Entry] = {}
        self._batches: dict[tuple[int, Work], Batch] = {}
        self._leases: dict[WorkerId, dict[RequestId, None]] = {}
        self._counts = dict.fromkeys(SampleState, 0)
        self._claims: dict[int, Group] = {}
        """Positions of the prompt order that are issued, not wholly dropped and not yet trained."""
        self._frontier = Frontier()
        self._steps: dict[int, StepCommitted] = {}
        self._step_count = 0
        self._oldest_restorable = 0
        self._retired: set[tuple[int, Work]] = set()

    def __contains__(self, request: RequestId) -> bool:
        return request in self._entries

    def state(self, request: RequestId) -> SampleState:
        return self._known(request).state

    def state_or_dropped(self, request: RequestId) -> SampleState:
        """State of the sample; DROPPED if it is unknown or retired."""
        entry = self._entries.get(request)
        return SampleState.DROPPED if entry is None else entry.state

    def request(self, request: RequestId) -> Request:
        return self._known(request).request

    def is_live(self, request: RequestId, attempt: int, holder: WorkerId | None = None) -> bool:
        """True if the sample is leased, to this worker if one is named, and this is its current attempt."""
        entry = self._entries.get(request)
        if entry is None or entry.attempt != attempt or entry.state is not LEASED:
            return False
        return holder is None or entry.holder == holder

    def attempt(self, request: RequestId) -> int:
        """Number of the latest attempt; 0 before the first."""
        return self._known(request).attempt

    def holder(self, request: RequestId) -> WorkerId | None:
        return self._known(request).holder

    def resume_limit(self, request: RequestId) -> ResumeLimit | None:
        """Flights from which the sample may be continued; None if it is unknown or needs no further attempt."""
        entry = self._entries.get(request)
        if entry is None or entry.state not in OUTSTANDING:
            return None
        return ResumeLimit(entry.attempt if entry.state is LEASED else None, entry.step, entry.origin)

    def accepted(self, request: RequestId) -> Accepted:
        accepted = self._known(request).accepted
        if accepted is None:
            raise InvariantBroken(f"sample {request} is {self.state(request)} and has no result; read its state first.")
        return accepted

    def result(self, request: RequestId) -> Accepted | None:
        """Result of an accepted or trained sample; None if it was dropped."""
        entry = self._known(request)
        return None if entry.state is SampleState.DROPPED else entry.accepted or self.accepted(request)

    def leases_of(self, worker: WorkerId) -> list[RequestId]:
        return sorted(self._leases.get(worker, ()))

    def queued(self) -> list[Request]:
        """Requests that wait for a worker, in issue order."""
        return [entry.request for entry in self._entries.values() if entry.state is SampleState.QUEUED]

    def iteration(self, iteration: int, work: Work) -> list[Request]:
        """All requests of a kind in issue order, including dropped ones."""
        batch = self._batches.get((iteration, work))
        return [entry.request for entry in batch.entries.values()] if batch else []

    def unsettled(self, weights: WeightsId) -> list[Request]:
        """Requests of these weights that are neither trained nor dropped; no previews."""
        return [
            entry.request
            for entry in self._entries.values()
            if entry.request.weights == weights
            and entry.batch.work is not Work.PREVIEW
            and entry.state not in (SampleState.TRAINED, SampleState.DROPPED)
        ]

    def unscored(self) -> list[Request]:
        """Requests accepted without a score, in issue order; no previews."""
        return [
            entry.request
            for entry in self._entries.values()
            if entry.state is SampleState.ACCEPTED
            and entry.batch.work is not Work.PREVIEW
            and entry.accepted is not None
            and not isfinite(entry.accepted.reward)
        ]

    def needed_weights(self, iteration: int | None = None) -> list[WeightsId]:
        """Weights that outstanding rollouts and audits need, of one iteration or of all."""
        batches = [batch for batch in self._batches.values() if batch.outstanding and batch.work in EXACT]
        return sorted(
            {
                entry.request.weights
                for batch in batches
                if iteration is None or batch.iteration == iteration
                for entry in batch.entries.values()
                if entry.state in OUTSTANDING
            }
        )

    def outstanding(self, iteration: int, work: Work) -> int:
        """Number of requests that are neither accepted nor dropped."""
        batch = self._batches.get((iteration, work))
        return batch.outstanding if batch else 0

    def is_made(self, iteration: int) -> bool:
        """True if no rollout or audit of the iteration is outstanding; called after every message."""
        batches = self._batches
        rollouts, audits = batches.get((iteration, ROLLOUT)), batches.get((iteration, AUDIT))
        return not (rollouts is not None and rollouts.outstanding) and not (audits is not None and audits.outstanding)

    def group_complete(self, iteration: int, group: int) -> bool:
        """True if every rollout of the group is accepted or dropped; `survivors` are the ones to train."""
        found = self._group(iteration, group)
        return found is not None and found.outstanding == 0

    def is_group_made(self, iteration: int, group: int) -> bool:
        """True if the group is complete and none of its audits is outstanding."""
        audits = self._batches.get((iteration, AUDIT))
        audited = audits.groups.get(group) if audits is not None else None
        return self.group_complete(iteration, group) and not (audited is not None and audited.outstanding)

    def survivors(self, iteration: int, group: int) -> list[RequestId]:
        """Rollouts of a group that are not dropped, in issue order; an optimizer step trains all of them or none."""
        found = self._group(iteration, group)
        return [entry.id for entry in found.survivors()] if found else []

    def positions(self, iteration: int) -> tuple[int, ...]:
        """Position in the prompt order of each rollout group of the iteration."""
        batch = self._batches.get((iteration, Work.ROLLOUT))
        return batch.positions if batch else ()

    def next_positions(self, count: int) -> tuple[int, ...]:
        """The next prompt positions to issue: the first that are neither trained nor claimed by a live group."""
        return frontiers.next_positions(self._frontier, count, self._claims)

    def counts(self) -> Mapping[SampleState, int]:
        return dict(self._counts)

    @property
    def steps(self) -> int:
        return self._step_count

    def step(self, step: int) -> StepCommitted:
        try:
            return self._steps[step]
        except KeyError:
            raise InvariantBroken(
                f"step {step} is not committed, or retired; {self._step_count} are committed."
            ) from None

    @property
    def frontier(self) -> Frontier:
        return self._frontier

    def frontier_after(self, requests: Iterable[RequestId]) -> Frontier:
        """The frontier after training the groups of these samples."""
        groups = groups_of([self._known(request) for request in requests])
        return frontiers.advance(self._frontier, [_position(group) for group in groups])

    def _known(self, request: RequestId) -> Entry:
        entry = self._entries.get(request)
        if entry is None:
            raise InvariantBroken(
                f"sample {request} was never issued, or is retired; only issued samples have a state."
            )
        return entry

    def _group(self, iteration: int, group: int) -> Group | None:
        batch = self._batches.get((iteration, Work.ROLLOUT))
        return batch.groups.get(group) if batch else None


def groups_of(entries: Iterable[Entry]) -> list[Group]:
    """Return the groups of these entries, each once, in order of first appearance."""
    return list({(entry.batch.iteration, entry.group.number): entry.group for entry in entries}.values())


def _position(group: Group) -> int:
    if group.position is None:
        raise InvariantBroken(f"group {group.number} was issued without a prompt position; pass positions.")
    return group.position
