"""Work that waits for one set of weights, in the order of service, and the capacity there is to do it.

Invariant: within a class what came back is served first, then iteration by iteration, group by group (previews in the
order of issue); the sums kept here equal those over the tickets (tests/unit/test_scheduler.py,
tests/property/test_scheduler_property.py).
"""

from heapq import heappop, heappush
from math import inf
from typing import TypeAlias

from spotlight.control.scheduler.speeds import Team
from spotlight.control.scheduler.tickets import Ticket
from spotlight.core.work import WeightsId, Work

PREVIEW_RANK = Work.PREVIEW.rank


Entry: TypeAlias = tuple[int, int, int, int, int, Ticket]
"""A key, the turn at which it was queued, and the ticket."""


class Queue:
    """The waiting requests of one kind of work, taken from the head."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._pushes = 0
        self.count = 0
        self.row_steps = 0

    def push(self, ticket: Ticket) -> None:
        self._pushes += 1
        ticket.is_queued, ticket.queued_as = True, self._pushes
        heappush(self._heap, (*ticket.key, self._pushes, ticket))
        self.count += 1
        self.row_steps += ticket.remaining

    def head(self) -> Ticket:
        """Entries of tickets that left the queue since, or came back as another entry, are void."""
        heap = self._heap
        while True:
            entry = heap[0]
            ticket = entry[5]
            if ticket.is_queued and ticket.queued_as == entry[4]:
                return ticket
            heappop(heap)

    def withdraw(self, ticket: Ticket) -> None:
        """It waits no more; its entries are cleared when they come up."""
        ticket.is_queued = False
        self.count -= 1
        self.row_steps -= ticket.remaining


class Backlog:
    """Everything about one set of weights."""

    def __init__(self, weights: WeightsId) -> None:
        self.weights = weights
        self.queues = [Queue() for _ in Work]
        """By rank: rollouts, audits (or with the rollouts of their group), evaluation, previews."""
        self.team = Team()
        """The workers that share this work: they hold the weights, are not warned, and ask or are busy."""
        self.load = 0
        """Row-steps that the team holds, of any kind: all of it takes its time."""
        self.holders = 0
        """Workers that hold the weights."""
        self.unfinished = [0 for _ in Work]
        """Requests that wait or are held, by rank."""

    def level_s(self, waiting: int) -> float:
        """Seconds in which the team would together finish so many waiting row-steps and all it holds."""
        return (waiting + self.load) / self.team.total if self.team else inf

    def left_s(self) -> float:
        """Seconds in which the team would finish everything that waits, and all it holds."""
        return self.level_s(sum(queue.row_steps for queue in self.queues))

    @property
    def waits(self) -> bool:
        """Whether anything but previews waits."""
        return any(queue.count for queue in self.queues[:PREVIEW_RANK])

    @property
    def is_needed(self) -> bool:
        """Whether a worker holds the weights, or a request uses them."""
        return bool(self.holders) or any(self.unfinished)
