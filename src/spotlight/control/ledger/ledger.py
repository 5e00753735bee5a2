"""The ledger: the state of every sample, its leases and results, and the training frontier.

Invariants (tests/property/test_ledger_property.py; `audit.py` checks them from the journal alone): a sample has at
most one live attempt and is accepted once; it is in at most one optimizer step of the surviving history; a group is
trained whole and with one policy version; the frontier moves only when a step commits. States: `states.py`.

Each change is checked, then sent to `emit` (the journal), then applied: if `emit` raises, nothing has changed, and
`replay` of the emitted events gives the same ledger. Previews pass the same states and fences but are not emitted,
since the journal has one record per batch of them; a replayed ledger has none.

    ledger.issue([request], positions=[0])         # QUEUED
    attempt = ledger.lease(request.id, worker)     # LEASED, attempt 1
    ledger.accept(result, published_digest)        # ACCEPTED: returns None
    ledger.accept(result, published_digest)        # returns RefusalReason.DUPLICATE
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from spotlight.control.ledger import frontier as frontiers
from spotlight.control.ledger.book import Book, groups_of
from spotlight.control.ledger.entries import Batch, Entry
from spotlight.control.ledger.states import EDGES, OUTSTANDING, InvariantBroken, SampleState
from spotlight.core.events import (
    Accepted,
    AnyEvent,
    Dropped,
    Issued,
    Leased,
    Refused,
    Released,
    Reopened,
    Restored,
    StepCommitted,
)
from spotlight.core.types import Frontier, WorkerId
from spotlight.core.work import RefusalReason, ReleaseReason, Request, RequestId, Work

Emit: TypeAlias = Callable[[AnyEvent], object]


QUEUED, LEASED, ACCEPTED = SampleState.QUEUED, SampleState.LEASED, SampleState.ACCEPTED
PREVIEW = Work.PREVIEW
"""Module constants, because attribute access on an enumeration is slow and every sample needs these."""


OLDEST = 1
"""Largest policy lag in versions of a sample at training time: one-step asynchrony."""


def ignore(event: AnyEvent) -> None:
    """Discard the event."""


class Ledger(Book):
    """All samples of a run. Changes are O(1) per sample; only reads copy."""

    def __init__(self, emit: Emit = ignore) -> None:
        super().__init__()
        self._emit = emit

    # -- changes -------------------------------------------------------------------------------------------------------

    def issue(self, requests: Sequence[Request], positions: Sequence[int] = ()) -> None:
        """Queue new samples; `positions` are the positions of the rollout groups in the prompt order."""
        ids = [request.id for request in requests]
        self._check_issue(requests, ids, positions)
        recorded = tuple(request for request in requests if request.work is not Work.PREVIEW)
        if recorded:
            self._emit(Issued(requests=recorded, positions=tuple(positions)))
        for request, request_id in zip(requests, ids, strict=True):
            key = (request.iteration, request.work)
            batch = self._batches.get(key)
            if batch is None:
                batch_positions = positions if request.work is Work.ROLLOUT else ()
                batch = self._batches[key] = Batch(request.iteration, request.work, batch_positions)
            entry = self._entries[request_id] = batch.add(request, request_id)
            if entry.group.position is not None:
                self._claims[entry.group.position] = entry.group
        self._counts[SampleState.QUEUED] += len(requests)

    def lease(self, request: RequestId, worker: WorkerId, step: int = 0) -> int:
        """Lease a queued sample to a worker, which starts at `step`; return the attempt, its fence."""
        entry = self._expect(request, QUEUED, "leased")
        attempt = entry.attempt + 1
        if entry.batch.work is not PREVIEW:
            self._emit(Leased(request=request, attempt=attempt, worker=worker, step=step))
        self._move(entry, LEASED)
        entry.attempt, entry.holder, entry.step = attempt, worker, step
        if not step:
            entry.origin = attempt
        held = self._leases.get(worker)
        if held is None:
            self._leases[worker] = {request: None}
        else:
            held[request] = None
        return attempt

    def release(self, request: RequestId, attempt: int, reason: ReleaseReason, step: int = 0, redone: int = 0) -> bool:
        """End a live attempt without a result; return False, with no effect, if it is not the live one."""
        entry = self._entries.get(request)
        if entry is None or entry.state is not LEASED or entry.attempt != attempt:
            return False
        self._record(entry, Released(request=request, attempt=attempt, reason=reason, step=step, redone=redone))
        self._end_lease(entry)
        self._move(entry, SampleState.QUEUED)
        entry.step = step
        return True

    def accept(self, accepted: Accepted, expected_digest: str | None) -> RefusalReason | None:
        """Accept a result, or return the reason of its refusal.

        `expected_digest` is the published digest of the request's weights; None (not published) refuses every result.
        """
        entry = self._entries.get(accepted.request)
        reason = _refusal(entry, accepted, expected_digest)
        if entry is None or reason is not None:
            return self._refuse(entry, accepted, reason or RefusalReason.UNKNOWN)
        self._record(entry, accepted)
        self._end_lease(entry)
        self._move(entry, ACCEPTED)
        entry.accepted, entry.step = accepted, 0
        return None

    def drop(self, request: RequestId, reason: str) -> None:
        """Drop a sample permanently."""
        entry = self._known(request)
        self._check_edge(entry, SampleState.DROPPED)
        self._record(entry, Dropped(request=request, reason=reason))
        self._end_lease(entry)
        self._move(entry, SampleState.DROPPED)
        group = entry.group
        group.alive -= 1
        if not group.alive and group.position is not None:
            del self._claims[group.position]

    def reopen(self, request: RequestId, reason: str) -> None:
        """Queue an accepted sample again, because its file is lost."""
        entry = self._expect(request, SampleState.ACCEPTED, "reopened")
        self._record(entry, Reopened(request=request, reason=reason))
        self._move(entry, SampleState.QUEUED)
        entry.accepted = None

    def cancel(self, work: Work, reason: str = "cancelled") -> list[RequestId]:
        """Drop every unfinished request of a kind and return them, in issue order."""
        batches = [batch for batch in self._batches.values() if batch.work is work and batch.outstanding]
        cancelled = [entry.id for batch in batches for entry in batch.entries.values() if entry.state in OUTSTANDING]
        for request in cancelled:
            self.drop(request, reason)
        return cancelled

    def commit_step(self, event: StepCommitted) -> None:
        """Record one optimizer step: mark its samples as trained and move the frontier, atomically."""
        entries = self._check_step(event)
        self._emit(event)
        for entry in entries:
            self._move(entry, SampleState.TRAINED)
        for group in groups_of(entries):
            group.trained = True
            if group.position is not None:
                del self._claims[group.position]
        self._frontier = event.frontier
        self._steps[event.step] = event
        self._step_count += 1

    def restore(self, step: int, reason: str) -> None:
        """Undo all but the first `step` optimizer steps; their samples become accepted again."""
        if not self._oldest_restorable <= step <= self._step_count:
            raise InvariantBroken(
                f"cannot restore to step {step}: {self._step_count} steps are committed, and the samples of the first "
                f"{self._oldest_restorable} are retired; restore a checkpoint between the two."
            )
        self._emit(Restored(step=step, reason=reason))
        for undone in range(self._step_count - 1, step - 1, -1):
            entries = [self._entries[request] for request in self._steps.pop(undone).requests]
            for entry in entries:
                self._move(entry, SampleState.ACCEPTED)
            for group in groups_of(entries):
                group.trained = False
                if group.position is not None:
                    self._claims[group.position] = group
        self._step_count = step
        self._frontier = self._steps[step - 1].frontier if step else Frontier()

    def interrupt(self, steps: Mapping[RequestId, int]) -> list[RequestId]:
        """Release every live lease after a restart of the controller; `steps` are those of the flights that are left.

        Steps of the live attempts beyond that are not known here, so they do not count as redone.
        """
        live = [entry for entry in self._entries.values() if entry.state is SampleState.LEASED]
        for entry in live:
            step = steps.get(entry.id, 0)
            redone = max(entry.step - step, 0)
            self.release(entry.id, entry.attempt, ReleaseReason.RESTART, step=step, redone=redone)
        return [entry.id for entry in live]

    def retire(self, iteration: int) -> None:
        """Delete the settled entries of the iterations up to this one, to bound memory; counts stay.

        Call this only when every checkpoint that may be restored is newer: an older restore is refused afterwards.
        """
        for key in [key for key in self._batches if key[0] <= iteration]:
            batch = self._batches[key]
            for entry in [entry for entry in batch.entries.values() if entry.is_settled()]:
                batch.forget(entry)
                del self._entries[entry.id]
                self._retired.add(key)
            if not batch.entries:
                del self._batches[key]
        for step, event in self._steps.items():
            if event.iteration <= iteration:
                self._oldest_restorable = max(self._oldest_restorable, step + 1)
        # The step before the oldest restorable one stays: a restore to the oldest needs its frontier.
        for step in [step for step in self._steps if step < self._oldest_restorable - 1]:
            del self._steps[step]

    @classmethod
    def replay(cls, events: Iterable[AnyEvent], emit: Emit = ignore) -> "Ledger":
        """Rebuild the ledger that emitted these events; leases live at the end stay live (see `interrupt`)."""
        ledger = cls()
        for event in events:
            ledger._fold(event)
        ledger._emit = emit
        return ledger

    # -- the rules -----------------------------------------------------------------------------------------------------

    def _record(self, entry: Entry, event: AnyEvent) -> None:
        """Emit the event unless it concerns a preview; `lease` has its own check, which saves making the event."""
        if entry.batch.work is not PREVIEW:
            self._emit(event)

    def _move(self, entry: Entry, to: SampleState) -> None:
        """Change the state and its counts; the only function that does."""
        before, counts = entry.state, self._counts
        if to not in EDGES[before]:
            self._check_edge(entry, to)
        entry.state = to
        counts[before] -= 1
        counts[to] += 1
        change = (to in OUTSTANDING) - (before in OUTSTANDING)
        if change:
            entry.group.outstanding += change
            entry.batch.outstanding += change

    def _end_lease(self, entry: Entry) -> None:
        if entry.holder is None:
            return
        held = self._leases[entry.holder]
        del held[entry.id]
        if not held:
            del self._leases[entry.holder]
        entry.holder = None

    def _refuse(self, entry: Entry | None, late: Accepted, reason: RefusalReason) -> RefusalReason:
        refused = Refused(request=late.request, attempt=late.attempt, worker=late.worker, reason=reason)
        if entry is None:
            self._emit(refused)
            return reason
        self._record(entry, refused)
        if reason is RefusalReason.WRONG_WEIGHTS:
            self.release(late.request, late.attempt, ReleaseReason.FAILED, step=0, redone=entry.step + late.steps)
        return reason

    def _check_edge(self, entry: Entry, to: SampleState) -> None:
        if to not in EDGES[entry.state]:
            raise InvariantBroken(
                f"sample {entry.id} is {entry.state} and cannot become {to}: there is no such edge; report it as a bug."
            )

    def _expect(self, request: RequestId, state: SampleState, act: str) -> Entry:
        entry = self._entries.get(request) or self._known(request)
        if entry.state is not state:
            raise InvariantBroken(
                f"sample {request} is {entry.state} and cannot be {act}; only a sample that is {state} can; "
                "report it as a bug."
            )
        return entry

    def _check_issue(self, requests: Sequence[Request], ids: Sequence[RequestId], positions: Sequence[int]) -> None:
        if len(set(ids)) < len(ids):
            raise InvariantBroken("one sample is issued twice in one call; a request's id is its identity.")
        for request, request_id in zip(requests, ids, strict=True):
            if request_id in self._entries or (request.iteration, request.work) in self._retired:
                raise InvariantBroken(f"sample {request_id} was issued before; a sample is issued once.")
        rollouts = [request for request in requests if request.work is Work.ROLLOUT]
        iterations = sorted({request.iteration for request in rollouts})
        if positions and len(iterations) > 1:
            raise InvariantBroken(f"positions belong to one iteration, not to {iterations}; issue each one separately.")
        for iteration in iterations:
            groups = [request.group for request in rollouts if request.iteration == iteration]
            self._check_positions(iteration, groups, tuple(positions))

    def _check_positions(self, iteration: int, groups: Sequence[int], positions: tuple[int, ...]) -> None:
        batch = self._batches.get((iteration, Work.ROLLOUT))
        if batch is not None:
            if positions and positions != batch.positions:
                raise InvariantBroken(f"iteration {iteration} has positions {batch.positions}, not {positions}.")
            known = [batch.groups[group] for group in groups if group in batch.groups]
            if any(group.trained or not group.alive for group in known):
                raise InvariantBroken(
                    f"a group of iteration {iteration} is trained or dropped and takes no more samples."
                )
            positions = batch.positions
        else:
            taken = [p for p in positions if p in self._claims or frontiers.is_trained(self._frontier, p)]
            if taken or len(set(positions)) < len(positions):
                raise InvariantBroken(f"prompt positions {taken or positions} are issued or trained already.")
        if positions and max(groups) >= len(positions):
            raise InvariantBroken(
                f"group {max(groups)} of iteration {iteration} has no position ({len(positions)} given)."
            )

    def _check_step(self, event: StepCommitted) -> list[Entry]:
        """Return the step's entries; raise unless it trains whole groups of accepted rollouts, each of one version."""
        what = f"step {event.step} of iteration {event.iteration}"
        if event.step != self._step_count:
            raise InvariantBroken(f"{what} cannot be committed after {self._step_count} steps; steps come in order.")
        if not event.requests or len(set(event.requests)) < len(event.requests):
            raise InvariantBroken(f"{what} names no sample, or one twice; a step trains each of its samples once.")
        entries = [self._expect(request, SampleState.ACCEPTED, "trained") for request in event.requests]
        foreign = [e.id for e in entries if e.batch.work is not Work.ROLLOUT or e.batch.iteration != event.iteration]
        if foreign:
            raise InvariantBroken(f"{what} takes {foreign[:3]}; only rollouts of that iteration enter its loss.")
        ages = sorted({event.iteration - entry.request.sample.version for entry in entries})
        if ages[0] < 0 or ages[-1] > OLDEST:
            raise InvariantBroken(
                f"{what} takes samples that are {ages} versions old; a sample may be at most {OLDEST} versions behind "
                "the weights that the step starts from, and never ahead of them."
            )
        taken = set(event.requests)
        for group in groups_of(entries):
            survivors = group.survivors()
            missing = [entry.id for entry in survivors if entry.id not in taken]
            versions = sorted({entry.request.sample.version for entry in survivors})
            digests = sorted({entry.accepted.digest for entry in survivors if entry.accepted is not None})
            if missing or len(versions) > 1 or len(digests) > 1:
                raise InvariantBroken(
                    f"{what} takes group {group.number} without {missing[:3]}, with versions {versions} and weights "
                    f"{digests}; a group is trained whole, with one version and one set of weights."
                )
        expected = self.frontier_after(event.requests)
        if event.frontier != expected:
            raise InvariantBroken(f"{what} has frontier {event.frontier}, but its samples give {expected}.")
        return entries

    def _fold(self, event: AnyEvent) -> None:
        """Apply one event of the journal."""
        match event:
            case Leased():
                attempt = self.lease(event.request, event.worker, event.step)
                _check_replayed(attempt == event.attempt, event)
            case Accepted():
                _check_replayed(self.accept(event, event.digest) is None, event)
            case Released():
                _check_replayed(
                    self.release(event.request, event.attempt, event.reason, event.step, event.redone), event
                )
            case Issued():
                self.issue(event.requests, event.positions)
            case Dropped():
                self.drop(event.request, event.reason)
            case Reopened():
                self.reopen(event.request, event.reason)
            case StepCommitted():
                self.commit_step(event)
            case Restored():
                self.restore(event.step, event.reason)
            case _:
                pass


def _refusal(entry: Entry | None, accepted: Accepted, expected_digest: str | None) -> RefusalReason | None:
    if entry is None:
        return RefusalReason.UNKNOWN
    # The worker must match too: attempts of previews start over when the controller restarts.
    if entry.state is LEASED and entry.attempt == accepted.attempt and entry.holder == accepted.worker:
        return None if accepted.digest == expected_digest else RefusalReason.WRONG_WEIGHTS
    if entry.state is SampleState.DROPPED:
        return RefusalReason.UNKNOWN
    is_finished = entry.state in (ACCEPTED, SampleState.TRAINED)
    return RefusalReason.DUPLICATE if is_finished else RefusalReason.FENCED


def _check_replayed(agrees: bool, event: AnyEvent) -> None:
    if not agrees:
        raise InvariantBroken(f"the journal is inconsistent at {event}; run `spotlight audit` on it.")
