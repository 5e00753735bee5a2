"""Pull scheduling: workers with free rows pull; a round of service matches standing pulls with waiting requests.

    pull --> STANDING --served--> (removed)
               ^ |
               | `--refused--> ASIDE
               `--- woken by the worker's next message, or by new or returned work

Order of service: rollouts, then audits, evaluation, previews. A class is served only when no request of a better one
waits for any weights that the worker holds, so previews delay no other work. Of two queues of one class, the one with
the older head is served. A round gives fair shares to all standing pulls, the fastest worker first, then one of the
remaining rows to each.

Invariants: every request that a round gives is leased in the ledger, and each popped pull is served or set aside
(tests/unit/test_scheduler_rounds.py); a refused pull costs nothing until something changes (benchmarks/scheduler/), and
the worker's heartbeat wakes it at the latest (tests/unit/test_scheduler.py).
"""

from collections.abc import Sequence
from itertools import groupby
from typing import TypeAlias

import msgspec

from spotlight.control.scheduler import notices
from spotlight.control.scheduler.balance import Balance
from spotlight.control.scheduler.booking import Booking
from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.control.scheduler.state import PREVIEW_RANK, Backlog, PullQueue, Queue, Standing, Ticket, WorkerRecord
from spotlight.core.types import WorkerId
from spotlight.core.work import Request, RequestId, WeightsId, Work


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A request that a worker receives, and the step to resume from."""

    request: Request
    attempt: int
    step: int


class Assignment(msgspec.Struct, frozen=True, gc=False):
    """Leases for one worker, all with one set of weights."""

    worker: WorkerId
    weights: WeightsId
    leases: tuple[Lease, ...]


class Recalled(msgspec.Struct, frozen=True, gc=False):
    """Requests that a worker has to hand back at its next step boundary."""

    worker: WorkerId
    requests: tuple[RequestId, ...]


def assignments_of(worker: WorkerRecord, taken: Sequence[Ticket]) -> list[Assignment]:
    """Split the taken tickets into one assignment per set of weights."""
    if len(taken) == 1:
        ticket = taken[0]
        lease = Lease(ticket.request, ticket.attempt, ticket.step)
        return [Assignment(worker.id, ticket.backlog.weights, (lease,))]
    return [
        Assignment(
            worker.id,
            backlog.weights,
            tuple(Lease(ticket.request, ticket.attempt, ticket.step) for ticket in tickets),
        )
        for backlog, tickets in groupby(taken, key=lambda ticket: ticket.backlog)
    ]


LEAVING = Standing.LEAVING
ALL_RANKS = range(len(Work))
RANKS = {
    Standing.SERVING: ALL_RANKS,
    Standing.PREVIEWS_ONLY: (PREVIEW_RANK,),
    Standing.LEAVING: ALL_RANKS,
    Standing.DRAINING: (),
}


def next_queue(worker: WorkerRecord, now: float, settings: SchedulerSettings) -> tuple[Backlog, Queue] | None:
    """The queue of the worker's next request; None if no waiting request may go to it."""
    for rank in RANKS[worker.standing]:
        if rank == PREVIEW_RANK and not worker.takes_previews:
            continue
        found: tuple[Backlog, Queue] | None = None
        for backlog in worker.backlogs:
            queue = backlog.queues[rank]
            if queue.count and (found is None or queue.head().key < found[1].head().key):
                found = (backlog, queue)
        if found is not None:
            late = worker.standing is LEAVING and not notices.fits(worker, found[1].head().remaining, now, settings)
            return None if late else found
    return None


_Served: TypeAlias = tuple[WorkerRecord, list[Ticket]]
"""A worker with a standing pull, and the tickets it receives."""


class Rounds:
    """Matches standing pulls with waiting requests."""

    def __init__(self, settings: SchedulerSettings, booking: Booking, balance: Balance, pulls: PullQueue) -> None:
        self._settings = settings
        self._booking = booking
        self._balance = balance
        self._pulls = pulls

    def serve(self, now: float) -> list[Assignment]:
        """Serve one round."""
        served: list[_Served] = []
        while self._booking.waiting and (worker := self._pulls.pop()) is not None:
            served.append((worker, self._take_share(worker, now)))
        for worker, taken in served:
            if not self._booking.waiting:
                break
            taken += self._take_rest(worker, now)
        return [assignment for worker, taken in served for assignment in self._reply(worker, taken)]

    def _reply(self, worker: WorkerRecord, taken: list[Ticket]) -> list[Assignment]:
        if not taken:
            self._pulls.set_aside(worker)
            return []
        worker.free_rows = 0
        worker.refused = None
        assignments = assignments_of(worker, taken)
        worker.assignments += len(assignments)
        return assignments

    def _take_share(self, worker: WorkerRecord, now: float) -> list[Ticket]:
        taken: list[Ticket] = []
        while worker.free_rows > 0 and worker.room > 0:
            source = next_queue(worker, now, self._settings)
            if source is None or not self._balance.is_share(worker, *source):
                break
            taken.append(self._booking.lease(worker, source[1], now))
        return taken

    def _take_rest(self, worker: WorkerRecord, now: float) -> list[Ticket]:
        source = next_queue(worker, now, self._settings) if worker.free_rows > 0 and worker.room > 0 else None
        if source is None or not self._balance.is_rest(worker, *source, now):
            return []
        return [self._booking.lease(worker, source[1], now)]
