"""Stragglers: held requests that an idle worker would finish clearly sooner, and workers that are silent.

A recall orders the holder to commit at its next step boundary and hand back. Only then is the request given to another
worker, so there are never two live attempts. Each attempt is recalled once. A holder that still reports the attempt in
its heartbeats ignored the recall and counts as silent: the caller fences it, and its work resumes elsewhere. A holder
that no longer reports it has finished it: the result is in decoding, scoring or transit, which may take long
(tests/unit/test_stragglers.py).

    HELD --recall--> RECALLED --handed back----> QUEUED (first in line)
                         |----finished---------> (removed)
                         `----still reported---> its worker is silent: fenced, then QUEUED
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from operator import attrgetter

from spotlight.control.scheduler.balance import ROUNDING
from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.control.scheduler.state import PREVIEW_RANK, Backlog, Standing, Ticket, WorkerRecord
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId

_speed = attrgetter("speed")


class IdleWorkers:
    """Idle workers by the weights they hold, the shortest step first; counts the rows promised to each."""

    def __init__(self, idle: Iterable[WorkerRecord]) -> None:
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
        """The spare with the shortest step, and the seconds of that step; never the holder."""
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
        return worker.step_s(len(worker.leases) + self._rows[worker.id] + 1)


def suspects(
    workers: Collection[WorkerRecord],
    backlogs: Iterable[Backlog],
    smallest_batch: float,
    most_rows: int,
    slowest: float,
    settings: SchedulerSettings,
) -> list[WorkerRecord]:
    """Busy workers that are slow, or stall, by enough for a move to pay.

    No worker is spare for weights that requests wait for, and no spare steps faster than the fastest worker with the
    smallest batch; so most searches end here.
    """
    movable = [backlog for backlog in backlogs if not backlog.waits and any(backlog.unfinished[:PREVIEW_RANK])]
    shortest_s = min([smallest_batch / backlog.team.fastest for backlog in movable if backlog.team], default=None)
    if shortest_s is None:
        return []
    limit_s = settings.straggler_factor * shortest_s * ROUNDING
    stalled_s = limit_s + settings.stall_s
    # Scanning all workers is expensive, so first test whether any can be slow: none holds more than twice its rows.
    if 2 * most_rows <= limit_s * slowest or 2 * most_rows <= limit_s * min(map(_speed, workers)):
        candidates = [worker for worker in workers if worker.lags and worker.leases]
    else:
        candidates = [worker for worker in workers if worker.leases]
    return [
        worker
        for worker in candidates
        if worker.step_s(len(worker.leases)) > limit_s or (worker.lags and _stalls(worker, stalled_s))
    ]


def _stalls(worker: WorkerRecord, seconds: float) -> bool:
    return any(ticket.reported_at - ticket.moved_at > seconds for ticket in worker.leases.values())


def find(busy: Sequence[WorkerRecord], idle: Iterable[WorkerRecord], settings: SchedulerSettings) -> list[Ticket]:
    """Requests worth moving, the latest first; each move speeds up the holder's other requests."""
    spares = IdleWorkers(worker for worker in idle if worker.standing is Standing.SERVING)
    held = {worker.id: _movable(worker) for worker in busy if worker.standing is Standing.SERVING}
    holders = {worker.id: worker for worker in busy if held.get(worker.id)}
    latest = [(-_finish_s(holders[name], held[name], settings), name) for name in sorted(holders)]
    heapify(latest)
    moved: list[Ticket] = []
    while latest:
        seconds, name = heappop(latest)
        holder, tickets = holders[name], held[name]
        ticket = tickets[-1]
        spare = spares.best(ticket.backlog, holder)
        if spare is None:
            continue
        moved_s = settings.move_s + ticket.remaining * spare[1]
        if -seconds <= settings.straggler_factor * moved_s:
            continue
        moved.append(tickets.pop())
        spares.promise_row(spare[0])
        if tickets:
            heappush(latest, (-_finish_s(holder, tickets, settings), name))
    return moved


def _movable(worker: WorkerRecord) -> list[Ticket]:
    """Tickets to move, previews and recalled ones excluded; the one that ends last is at the end."""
    tickets = [
        ticket
        for ticket in worker.leases.values()
        if not ticket.is_recalled and ticket.request.work.rank < PREVIEW_RANK
    ]
    return sorted(tickets, key=lambda ticket: (ticket.remaining, ticket.place))


def _finish_s(worker: WorkerRecord, tickets: Sequence[Ticket], settings: SchedulerSettings) -> float:
    """Seconds until the last of these is finished on its holder.

    A step takes at least as long as the step in progress has taken already by the worker's reports.
    """
    last = tickets[-1]
    others = sum(1 for ticket in worker.leases.values() if ticket.request.work.rank == PREVIEW_RANK)
    stalled_s = last.reported_at - last.moved_at - settings.stall_s
    return last.remaining * max(worker.step_s(len(tickets) + others), stalled_s)


class Watch:
    """Deadlines by which a worker must have sent a message, or have stopped a recalled attempt."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._silences: list[tuple[float, int, WorkerRecord]] = []
        self._recalls: list[tuple[float, int, _Recall]] = []
        self._entries = 0
        """Number of entries pushed; breaks ties between equal deadlines."""

    def worker(self, worker: WorkerRecord) -> None:
        """Watch the worker's messages; one entry per worker, renewed when it comes up."""
        self._watch_worker(worker.seen_at + self._settings.silence_s, worker)

    def recall(self, ticket: Ticket, holder: WorkerRecord, now: float) -> None:
        """Watch a recalled attempt: after its current step, half of the timeout is to stop, half to report."""
        boundary = now + holder.step_s(len(holder.leases))
        stop_by = boundary + self._settings.recall_timeout_s / 2
        self._watch_recall(boundary + self._settings.recall_timeout_s, _Recall(ticket, ticket.attempt, stop_by))

    def due(self, now: float, known: Mapping[WorkerId, WorkerRecord]) -> Iterator[WorkerRecord]:
        """Workers that missed a deadline; repeated after another `silence_s` unless the caller acts on it."""
        again = now + self._settings.silence_s
        while self._silences and self._silences[0][0] <= now:
            _, _, worker = heappop(self._silences)
            if known.get(worker.id) is not worker:
                continue
            deadline = worker.seen_at + self._settings.silence_s
            if deadline <= now:
                yield worker
            self._watch_worker(again if deadline <= now else deadline, worker)
        while self._recalls and self._recalls[0][0] <= now:
            _, _, recall = heappop(self._recalls)
            ticket = recall.ticket
            if ticket.holder is None or ticket.attempt != recall.attempt:
                continue
            excused_at, timeout_s = ticket.holder.excused_at, self._settings.recall_timeout_s
            if excused_at + timeout_s / 2 > recall.stop_by:
                # The recall may have waited for the connection.
                later = replace(recall, stop_by=excused_at + timeout_s / 2)
                self._watch_recall(excused_at + timeout_s, later)
                continue
            if ticket.reported_at >= recall.stop_by:
                yield ticket.holder
            self._watch_recall(again, recall)

    def _watch_worker(self, deadline: float, worker: WorkerRecord) -> None:
        self._entries += 1
        heappush(self._silences, (deadline, self._entries, worker))

    def _watch_recall(self, check_at: float, recall: "_Recall") -> None:
        self._entries += 1
        heappush(self._recalls, (check_at, self._entries, recall))


@dataclass(frozen=True, slots=True)
class _Recall:
    """One recalled attempt."""

    ticket: Ticket
    attempt: int
    stop_by: float
    """Latest time at which the holder may still report the attempt."""
