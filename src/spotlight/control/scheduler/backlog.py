"""Work that waits for one set of weights, in the order of service, and the capacity there is to do it.

Invariant: within a class what came back is served first, then iteration by iteration, group by group (previews in the
order of issue); the sums kept here equal those over the tickets (tests/unit/test_scheduler.py,
tests/property/test_scheduler_property.py).
"""

from bisect import insort
from heapq import heappop, heappush
from math import inf
from typing import TypeAlias

from spotlight.control.scheduler.coming import Coming
from spotlight.control.scheduler.speeds import Team
from spotlight.control.scheduler.tickets import Ticket
from spotlight.core.work import WeightsId, Work

PREVIEW_RANK = Work.PREVIEW.rank


Entry: TypeAlias = tuple[int, int, int, int, int, Ticket]
"""A key, the turn at which it was queued, and the ticket."""


class Queue:
    """The waiting requests of one kind of work, taken from the head, or from behind it by who may leave soon."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._line: list[Entry] | None = None
        """The same in order, once anybody has asked for what is behind the head."""
        self._pushes = 0
        self.count = 0
        self.row_steps = 0

    def push(self, ticket: Ticket) -> None:
        self._pushes += 1
        ticket.is_queued, ticket.queued_as = True, self._pushes
        entry = (*ticket.key, self._pushes, ticket)
        heappush(self._heap, entry)
        if self._line is not None:
            insort(self._line, entry)
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

    def beyond(self, count: int) -> Ticket:
        """The one behind the first so many, or the last; costs as much as there are."""
        self._line = [entry for entry in self._line or sorted(self._heap) if _is_valid(entry)]
        return self._line[min(count, len(self._line) - 1)][-1]

    def withdraw(self, ticket: Ticket) -> None:
        """It waits no more; its entries are cleared when they come up."""
        ticket.is_queued = False
        self.count -= 1
        self.row_steps -= ticket.remaining


def _is_valid(entry: Entry) -> bool:
    return entry[5].is_queued and entry[5].queued_as == entry[4]


class Backlog:
    """Everything about one set of weights."""

    def __init__(self, weights: WeightsId) -> None:
        self.weights = weights
        self.queues = [Queue() for _ in Work]
        """By rank: rollouts, audits (or with the rollouts of their group), evaluation, previews."""
        self.team = Team()
        """The workers that share this work: they hold the weights, are not warned, and ask or are busy."""
        self.coming = Coming()
        """Who will share it soon."""
        self.load = 0
        """Row-steps that the team holds, of any kind: all of it takes its time."""
        self.holders = 0
        """Workers that hold the weights."""
        self.unfinished = [0 for _ in Work]
        """Requests that wait or are held, by rank."""

    def level_s(self, waiting: int) -> float:
        """Seconds in which the team would together finish so many waiting row-steps and all it holds."""
        return (waiting + self.load) / self.team.total if self.team else inf

    def shared_level_s(self, waiting: int, now: float) -> float:
        """The same, with who joins it until then."""
        if not self.coming or not self.team:
            return self.level_s(waiting)
        return self.coming.level_s(waiting + self.load, self.team.total, now)

    def left_s(self) -> float:
        """Seconds in which the team would finish everything that waits, and all it holds."""
        return self.level_s(sum(queue.row_steps for queue in self.queues))

    @property
    def waits(self) -> bool:
        """Whether anything but previews waits."""
        return any(queue.count for queue in self.queues[:PREVIEW_RANK])

    @property
    def is_needed(self) -> bool:
        """Whether anybody holds the weights or will soon, or any request is of them."""
        return bool(self.holders) or bool(self.coming) or any(self.unfinished)
