"""Where every unfinished request is: its ticket waits in a backlog or is held by a worker, never both, never neither.

Each move is made here, in step with the ledger and with the sums that shares are computed from. Invariant: a held
ticket's holder and attempt are the ledger's (tests/property/test_scheduler_property.py).
"""

from collections.abc import Callable, Collection, Iterable
from math import inf
from typing import TypeAlias

from spotlight.control.ledger import InvariantBroken, Ledger, SampleState
from spotlight.control.scheduler.backlog import Backlog, Queue
from spotlight.control.scheduler.balance import Balance
from spotlight.control.scheduler.hunger import Hunger
from spotlight.control.scheduler.tickets import Ticket
from spotlight.control.scheduler.workers import Worker
from spotlight.core.events import ReleaseReason
from spotlight.core.types import WorkerId
from spotlight.core.work import Request, RequestId, WeightsId, Work

QUEUED, LEASED = SampleState.QUEUED, SampleState.LEASED
Turn: TypeAlias = Callable[[Request], int]
"""When a request's group is needed, among those of its iteration."""


def by_number(request: Request) -> int:
    """Groups are needed in the order of their numbers."""
    return request.group


class Booking:
    """All tickets."""

    def __init__(
        self, ledger: Ledger, balance: Balance, hunger: Hunger, turn: Turn, audits_with_groups: bool = False
    ) -> None:
        self._ledger = ledger
        self._turn = turn
        self._ranks = {work: work.rank for work in Work}
        """Of the queues that kinds of work wait in."""
        if audits_with_groups:
            self._ranks[Work.AUDIT] = Work.ROLLOUT.rank
        self._balance = balance
        self._hunger = hunger
        self._tickets: dict[RequestId, Ticket] = {}
        self._backlogs: dict[WeightsId, Backlog] = {}
        self._places = 0
        self.waiting = 0
        """Tickets in queues."""
        self.advances = 0
        """Times that a live attempt was reported at a later step than before."""
        self._shortest: float | None = None
        """Known until a ticket is queued or taken."""

    # -- moves ---------------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """A request that the ledger has queued waits for a worker."""
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
        ticket = Ticket(request, request_id, backlog, self._places, rank, self._turn(request), steps, steps or 1)
        self._tickets[request_id] = ticket
        backlog.queues[rank].push(ticket)
        self.waiting += 1
        self._shortest = None

    def lease(self, worker: Worker, queue: Queue, now: float) -> Ticket:
        """The first in line, or the first that the worker does not leave to others, is the worker's now."""
        ticket = queue.beyond(worker.leaves) if worker.leaves else queue.head()
        ticket.attempt = self._ledger.lease(ticket.id, worker.id, ticket.step)
        queue.withdraw(ticket)
        self.waiting -= 1
        self._shortest = None
        ticket.holder = worker
        ticket.moved_at = ticket.named_at = now
        ticket.is_recalled = False
        ticket.is_early = worker.leaves > 0
        worker.leases[ticket.id] = ticket
        worker.free_rows -= 1
        if worker.awaited:
            self.forget_coming(worker)
        self._balance.shift(worker, ticket.remaining)
        return ticket

    def advance(self, ticket: Ticket, step: int, now: float) -> None:
        """The live attempt has reached this step; one that is old news only shows that the attempt lives."""
        ticket.named_at = now
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
        if ticket.holder.is_paced:
            self._hunger.wake(ticket.holder)

    def release(self, ticket: Ticket, reason: ReleaseReason) -> None:
        """End the live attempt; what the ledger does not count as live any more is not wanted any more."""
        redone = max(ticket.reached - ticket.step, 0)
        wanted = self._ledger.release(ticket.id, ticket.attempt, reason, step=ticket.step, redone=redone)
        self._take_away(ticket)
        if wanted:
            self._enqueue_again(ticket)
        else:
            self._forget(ticket)

    def follow(self, request: RequestId) -> None:
        """The ledger judged a result: go where the request went, if it is not held as before."""
        ticket = self._tickets.get(request)
        if ticket is None or ticket.holder is None:
            return
        state = self._ledger.fate(request)
        if state is LEASED:
            return
        self._take_away(ticket)
        if state is QUEUED:
            # Refused for its weights: what it committed was made with them too.
            ticket.step = 0
            self._enqueue_again(ticket)
        else:
            self._forget(ticket)

    def dismiss(self, request: RequestId) -> WorkerId | None:
        """Dropped in the ledger: it waits no more; whoever is returned holds nothing of worth."""
        ticket = self._tickets.get(request)
        if ticket is None:
            return None
        holder = ticket.holder
        if holder is None:
            self._queue(ticket).withdraw(ticket)
            self.waiting -= 1
            self._shortest = None
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
        """Those of the requests that wait or are held."""
        return [self._tickets[request] for request in requests if request in self._tickets]

    def backlogs(self) -> Collection[Backlog]:
        return self._backlogs.values()

    def shortest_head(self) -> float:
        """Row-steps of the shortest of those that are first in their queues; infinite if nothing waits."""
        if self._shortest is None:
            heads = [queue.head() for backlog in self._backlogs.values() for queue in backlog.queues if queue.count]
            self._shortest = min([ticket.remaining for ticket in heads], default=inf)
        return self._shortest

    def backlog(self, weights: WeightsId) -> Backlog:
        backlog = self._backlogs.get(weights)
        if backlog is None:
            backlog = self._backlogs[weights] = Backlog(weights)
        return backlog

    def tidy(self, backlog: Backlog) -> None:
        """New weights come with every iteration: those that nobody holds or waits for are forgotten."""
        if not backlog.is_needed:
            self._backlogs.pop(backlog.weights, None)

    def expect(self, worker: Worker, weights: WeightsId, ready_at: float, given_up_at: float) -> None:
        """A share of what is of these weights is left for it."""
        worker.awaited = True
        self.backlog(weights).coming.expect(worker.id, worker.speed, ready_at, given_up_at)

    def forget_coming(self, worker: Worker) -> None:
        """Nobody leaves a share to it any more: it is gone, asks no more, or has something else to do."""
        if worker.awaited:
            worker.awaited = False
            for backlog in list(self._backlogs.values()):
                backlog.coming.forget(worker.id)
                self.tidy(backlog)

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
        self._hunger.wake(holder)
        ticket.holder = None

    def _enqueue_again(self, ticket: Ticket) -> None:
        """First in line, unless it was begun before its turn."""
        ticket.reach(ticket.step)
        ticket.was_returned = ticket.was_returned or not ticket.is_early
        self._enqueue(ticket)
        self._hunger.wake_for(ticket.remaining)

    def _enqueue(self, ticket: Ticket) -> None:
        self._queue(ticket).push(ticket)
        self.waiting += 1
        self._shortest = None

    def _forget(self, ticket: Ticket) -> None:
        del self._tickets[ticket.id]
        backlog = ticket.backlog
        backlog.unfinished[ticket.rank] -= 1
        if not backlog.holders:
            self.tidy(backlog)

    def _queue(self, ticket: Ticket) -> Queue:
        return ticket.backlog.queues[ticket.rank]
