"""All tickets of unfinished requests: each waits in a backlog or is held by one worker, never both, never neither.

Every move changes the ledger, the ticket and the sums that shares are computed from together. Invariant: a held
ticket's holder and attempt are the ledger's (tests/property/test_scheduler_property.py).
"""

from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from spotlight.control.ledger import InvariantBroken, Ledger, SampleState
from spotlight.control.scheduler.balance import Balance
from spotlight.control.scheduler.state import Backlog, PullQueue, Queue, Ticket, WorkerRecord
from spotlight.core.types import WorkerId
from spotlight.core.work import ReleaseReason, Request, RequestId, WeightsId, Work

QUEUED, LEASED = SampleState.QUEUED, SampleState.LEASED
GroupOrder: TypeAlias = Callable[[Request], int]
"""Position at which a request's group is needed within its iteration."""


def by_number(request: Request) -> int:
    """Order groups by their numbers."""
    return request.group


class Booking:
    """All tickets, and their moves between queues and workers."""

    def __init__(
        self,
        ledger: Ledger,
        balance: Balance,
        pulls: PullQueue,
        group_order: GroupOrder,
        audits_with_groups: bool = False,
    ) -> None:
        self._ledger = ledger
        self._group_order = group_order
        self._ranks = {work: work.rank for work in Work}
        """Rank of the queue that each kind of work waits in."""
        if audits_with_groups:
            self._ranks[Work.AUDIT] = Work.ROLLOUT.rank
        self._balance = balance
        self._pulls = pulls
        self._tickets: dict[RequestId, Ticket] = {}
        self._backlogs: dict[WeightsId, Backlog] = {}
        self._places = 0
        self.waiting = 0
        """Tickets in queues."""
        self.advances = 0
        """Number of reports that moved a live attempt to a later step."""

    # -- moves ---------------------------------------------------------------------------------------------------------

    def add(self, request: Request, step: int = 0) -> None:
        """Queue a request that is queued in the ledger; with a flight of this step it is served first."""
        request_id = request.id
        state = self._ledger.state(request_id)
        if request_id in self._tickets or state is not QUEUED:
            raise InvariantBroken(
                f"request {request_id} is {state} and cannot be scheduled, or is scheduled already; only what is "
                "queued in the ledger is added, once; report this as a bug."
            )
        backlog = self.backlog(request.weights)
        steps, rank = request.sample.sampling.steps, self._ranks[request.work]
        backlog.unfinished[rank] += 1
        self._places += 1
        ticket = Ticket(request, request_id, backlog, self._places, rank, self._group_order(request), steps, steps or 1)
        self._tickets[request_id] = ticket
        if step:
            ticket.step, ticket.was_returned = step, True
            ticket.reach(step)
        backlog.queues[rank].push(ticket)
        self.waiting += 1

    def start_over(self, request: RequestId) -> None:
        """A request that waits has lost its flight: its next attempt begins at the first step."""
        ticket = self._tickets[request]
        self._queue(ticket).withdraw(ticket)
        ticket.step = 0
        ticket.reach(0)
        self._queue(ticket).push(ticket)

    def lease(self, worker: WorkerRecord, queue: Queue, now: float) -> Ticket:
        """Lease the head of the queue to the worker."""
        ticket = queue.head()
        ticket.attempt = self._ledger.lease(ticket.id, worker.id, ticket.step)
        queue.withdraw(ticket)
        self.waiting -= 1
        ticket.holder = worker
        ticket.moved_at = ticket.reported_at = now
        ticket.is_recalled = False
        worker.leases[ticket.id] = ticket
        worker.free_rows -= 1
        self._balance.shift(worker, ticket.remaining)
        return ticket

    def advance(self, ticket: Ticket, step: int, now: float) -> None:
        """Record the step of the live attempt; an old step only shows that the attempt is alive."""
        ticket.reported_at = now
        if ticket.holder is None:
            return
        if step <= ticket.reached:
            ticket.holder.lags = True
            return
        self.advances += 1
        before = ticket.remaining
        ticket.reach(min(step, ticket.steps))
        ticket.moved_at = now
        self._balance.shift(ticket.holder, ticket.remaining - before)

    def release(self, ticket: Ticket, reason: ReleaseReason) -> None:
        """End the live attempt; requeue the request unless the ledger has dropped it."""
        redone = max(ticket.reached - ticket.step, 0)
        wanted = self._ledger.release(ticket.id, ticket.attempt, reason, step=ticket.step, redone=redone)
        self._take_away(ticket)
        if wanted:
            self._enqueue_again(ticket)
        else:
            self._forget(ticket)

    def follow(self, request: RequestId) -> None:
        """Move the ticket to where the ledger put the request when it judged a result."""
        ticket = self._tickets.get(request)
        if ticket is None or ticket.holder is None:
            return
        state = self._ledger.state_or_dropped(request)
        if state is LEASED:
            return
        self._take_away(ticket)
        if state is QUEUED:
            # Refused for its weights, so its committed steps were made with the wrong weights too.
            ticket.step = 0
            self._enqueue_again(ticket)
        else:
            self._forget(ticket)

    def dismiss(self, request: RequestId) -> WorkerId | None:
        """Remove a request that the ledger dropped; return its holder, which should discard it."""
        ticket = self._tickets.get(request)
        if ticket is None:
            return None
        holder = ticket.holder
        if holder is None:
            self._queue(ticket).withdraw(ticket)
            self.waiting -= 1
        else:
            self._take_away(ticket)
        self._forget(ticket)
        return holder.id if holder else None

    # -- reads ---------------------------------------------------------------------------------------------------------

    def live(self, worker: WorkerId, request: RequestId, attempt: int) -> Ticket | None:
        """The ticket, if this is its live attempt and this worker's."""
        ticket = self._tickets.get(request)
        if ticket is None or ticket.holder is None or ticket.holder.id != worker or ticket.attempt != attempt:
            return None
        return ticket

    def unfinished(self, requests: Iterable[RequestId]) -> list[Ticket]:
        """Tickets of those requests that wait or are held."""
        return [self._tickets[request] for request in requests if request in self._tickets]

    def backlogs(self) -> Collection[Backlog]:
        return self._backlogs.values()

    def backlog(self, weights: WeightsId) -> Backlog:
        backlog = self._backlogs.get(weights)
        if backlog is None:
            backlog = self._backlogs[weights] = Backlog(weights)
        return backlog

    def tidy(self, backlog: Backlog) -> None:
        """Forget a backlog that no worker or request uses; every iteration brings new weights."""
        if not backlog.is_needed:
            self._backlogs.pop(backlog.weights, None)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _take_away(self, ticket: Ticket) -> None:
        holder = ticket.holder
        if holder is None:
            return
        leases, balance = holder.leases, self._balance
        del leases[ticket.id]
        balance.shift(holder, -ticket.remaining)
        if not leases:
            balance.recount(holder)
        self._pulls.wake(holder)
        ticket.holder = None

    def _enqueue_again(self, ticket: Ticket) -> None:
        """Requeue at the front."""
        ticket.reach(ticket.step)
        ticket.was_returned = True
        self._queue(ticket).push(ticket)
        self.waiting += 1
        self._pulls.wake_all()

    def _forget(self, ticket: Ticket) -> None:
        del self._tickets[ticket.id]
        backlog = ticket.backlog
        backlog.unfinished[ticket.rank] -= 1
        if not backlog.holders:
            self.tidy(backlog)

    def _queue(self, ticket: Ticket) -> Queue:
        return ticket.backlog.queues[ticket.rank]
