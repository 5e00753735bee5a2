"""Held requests that somebody idle would finish clearly sooner, and workers that do not give them up or say nothing.

A recall asks the holder to commit at its next step boundary and hand back; only then is it given away, so there are
never two live attempts. It is asked once per attempt. A holder that goes on naming the attempt in its heartbeats does
not obey and counts as silent: the caller fences it, and its work goes on elsewhere. One that names it no more has
finished it: the result is on its way through decoding and scoring, which may take long and is nobody's fault
(tests/unit/test_scheduler_faults.py).

    HELD --recall--> RECALLED --handed back--> QUEUED (first in line)
                         |----finished--------> (gone)
                         `----still named-----> its worker is silent: fenced, then QUEUED
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from operator import attrgetter

from spotlight.control.scheduler.balance import ROUNDING
from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.control.scheduler.state import PREVIEW_RANK, Backlog, Standing, Ticket, WorkerRecord
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId

_speed = attrgetter("speed")


class Spares:
    """Idle workers by the weights they hold, the one with the shortest step first, as rows are promised to them."""

    def __init__(self, idle: Iterable[WorkerRecord], settings: SchedulerSettings) -> None:
        self._settings = settings
        self._rows: dict[WorkerId, int] = {}
        self._heaps: dict[WeightsId, list[tuple[float, WorkerId, WorkerRecord]]] = {}
        for worker in idle:
            self._rows[worker.id] = 0
            for backlog in worker.backlogs:
                if not backlog.waits:
                    self._heaps.setdefault(backlog.weights, []).append((self._step_s(worker), worker.id, worker))
        for heap in self._heaps.values():
            heapify(heap)

    def best(self, backlog: Backlog, holder: WorkerRecord) -> tuple[WorkerRecord, float] | None:
        """The spare with the shortest step, and that step's seconds; never the holder itself."""
        heap = self._heaps.get(backlog.weights, [])
        own: tuple[float, WorkerId, WorkerRecord] | None = None
        found: tuple[WorkerRecord, float] | None = None
        while heap and found is None:
            step_s, worker_id, worker = heap[0]
            if self._rows[worker_id] >= worker.room:
                heappop(heap)
            elif step_s != self._step_s(worker):
                heappop(heap)
                heappush(heap, (self._step_s(worker), worker_id, worker))
            elif worker is holder:
                own = heappop(heap)
            else:
                found = (worker, step_s)
        if own is not None:
            heappush(heap, own)
        return found

    def promise_row(self, worker: WorkerRecord) -> None:
        self._rows[worker.id] += 1

    def _step_s(self, worker: WorkerRecord) -> float:
        return worker.step_s(len(worker.leases) + self._rows[worker.id] + 1, self._settings.saturating_rows)


def suspects(
    workers: Collection[WorkerRecord],
    backlogs: Iterable[Backlog],
    fewest_rows: int,
    most_rows: int,
    slowest: float,
    settings: SchedulerSettings,
) -> list[WorkerRecord]:
    """Busy workers that are slow enough, or seem to be, for a move to be worth anything wherever it goes.

    Nobody is spare for weights that others wait for, and no spare can step faster than the fastest worker with the
    smallest batch; so most searches end here.
    """
    movable = [backlog for backlog in backlogs if not backlog.waits and any(backlog.unfinished[:PREVIEW_RANK])]
    batch = min(settings.saturating_rows, fewest_rows)
    shortest_s = min([batch / backlog.team.fastest for backlog in movable if backlog.team], default=None)
    if shortest_s is None:
        return []
    limit_s = settings.straggler_factor * shortest_s * ROUNDING
    rows, stalled_s = settings.saturating_rows, limit_s + settings.stall_s
    # A look at all workers is dear, so first, whether anybody can be slow: nobody holds more than twice its rows.
    if 2 * most_rows <= limit_s * slowest or 2 * most_rows <= limit_s * min(map(_speed, workers)):
        seeming = [worker for worker in workers if worker.lags and worker.leases]
    else:
        seeming = [worker for worker in workers if worker.leases]
    return [
        worker
        for worker in seeming
        if worker.step_s(len(worker.leases), rows) > limit_s or (worker.lags and _stalls(worker, stalled_s))
    ]


def _stalls(worker: WorkerRecord, seconds: float) -> bool:
    return any(ticket.named_at - ticket.moved_at > seconds for ticket in worker.leases.values())


def find(busy: Sequence[WorkerRecord], idle: Iterable[WorkerRecord], settings: SchedulerSettings) -> list[Ticket]:
    """Requests worth moving, the latest first; each one moved makes its holder's others quicker."""
    spares = Spares((worker for worker in idle if worker.standing is Standing.SERVING), settings)
    held = {worker.id: _movable(worker) for worker in busy if worker.standing is Standing.SERVING}
    holders = {worker.id: worker for worker in busy if held.get(worker.id)}
    latest = [(-_here_s(holders[name], held[name], settings), name) for name in sorted(holders)]
    heapify(latest)
    moved: list[Ticket] = []
    while latest:
        seconds, name = heappop(latest)
        holder, tickets = holders[name], held[name]
        ticket = tickets[-1]
        spare = spares.best(ticket.backlog, holder)
        if spare is None:
            continue
        there_s = settings.move_s + ticket.remaining * spare[1]
        if -seconds <= settings.straggler_factor * there_s:
            continue
        moved.append(tickets.pop())
        spares.promise_row(spare[0])
        if tickets:
            heappush(latest, (-_here_s(holder, tickets, settings), name))
    return moved


def _movable(worker: WorkerRecord) -> list[Ticket]:
    """What is worth waiting for and not asked back yet, the one that ends last at the end."""
    tickets = [
        ticket
        for ticket in worker.leases.values()
        if not ticket.is_recalled and ticket.request.work.rank < PREVIEW_RANK
    ]
    return sorted(tickets, key=lambda ticket: (ticket.remaining, ticket.place))


def _here_s(worker: WorkerRecord, tickets: Sequence[Ticket], settings: SchedulerSettings) -> float:
    """Seconds until the last of these is finished where it is.

    A step takes at least as long as the one in progress, by the worker's own word, has taken already.
    """
    last = tickets[-1]
    others = sum(1 for ticket in worker.leases.values() if ticket.request.work.rank == PREVIEW_RANK)
    stalled_s = last.named_at - last.moved_at - settings.stall_s
    return last.remaining * max(worker.step_s(len(tickets) + others, settings.saturating_rows), stalled_s)


class Watch:
    """Deadlines by which a worker must have spoken, or have obeyed a recall."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._words: list[tuple[float, int, WorkerRecord]] = []
        self._recalls: list[tuple[float, int, _Recall]] = []
        self._entries = 0
        """Tells apart entries of one deadline."""

    def worker(self, worker: WorkerRecord) -> None:
        """From now on it must speak; one entry per worker, moved on only when it comes up."""
        self._await_word(worker.heard_at + self._settings.silence_s, worker)

    def recall(self, ticket: Ticket, holder: WorkerRecord, now: float) -> None:
        """The live attempt must end soon after the step that it is in: half of the time to obey, half to say so."""
        boundary = now + holder.step_s(len(holder.leases), self._settings.saturating_rows)
        obey_by = boundary + self._settings.recall_timeout_s / 2
        self._await_return(boundary + self._settings.recall_timeout_s, _Recall(ticket, ticket.attempt, obey_by))

    def due(self, now: float, known: Mapping[WorkerId, WorkerRecord]) -> Iterator[WorkerRecord]:
        """Workers that let a deadline pass; named again after another silence, if nobody acts on it."""
        again = now + self._settings.silence_s
        while self._words and self._words[0][0] <= now:
            _, _, worker = heappop(self._words)
            if known.get(worker.id) is not worker:
                continue
            deadline = worker.heard_at + self._settings.silence_s
            if deadline <= now:
                yield worker
            self._await_word(again if deadline <= now else deadline, worker)
        while self._recalls and self._recalls[0][0] <= now:
            _, _, recall = heappop(self._recalls)
            ticket = recall.ticket
            if ticket.holder is None or ticket.attempt != recall.attempt:
                continue
            if ticket.named_at >= recall.obey_by:
                yield ticket.holder
            self._await_return(again, recall)

    def _await_word(self, deadline: float, worker: WorkerRecord) -> None:
        self._entries += 1
        heappush(self._words, (deadline, self._entries, worker))

    def _await_return(self, check_at: float, recall: "_Recall") -> None:
        self._entries += 1
        heappush(self._recalls, (check_at, self._entries, recall))


@dataclass(frozen=True, slots=True)
class _Recall:
    """One attempt that was asked back."""

    ticket: Ticket
    attempt: int
    obey_by: float
    """Whoever names the attempt later than this did not obey."""
