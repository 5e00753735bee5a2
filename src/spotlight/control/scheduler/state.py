"""What the scheduler knows: requests and the queues they wait in, workers, their speeds.

A request is waiting in a queue or held by a worker from `add` until it is accepted or dropped, never both, so nothing
is lost and nothing is served twice (tests/property/test_scheduler_property.py):

    add --> QUEUED --lease--> HELD --done--> (gone)
              ^                |
              `--- requeue ----'     handed back, recalled, lost: first in line, from its last committed step

A worker's standing only ever gets worse, and only `lose` ends a worker (tests/unit/test_scheduler_faults.py):

    SERVING --advisory notice--> PREVIEWS_ONLY --imminent notice--> LEAVING
    any of them --drain--> DRAINING

Invariants: within a class returned requests are served first, then iteration by iteration, group by group (previews in
the order of issue); the sums kept here equal those over the tickets (tests/unit/test_scheduler.py); no sum, maximum or
median costs more than O(log n) per change, amortised (benchmarks/scheduler/).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heapify, heappop, heappush
from math import inf, isfinite
from statistics import median
from typing import TypeAlias

from spotlight.core.types import WorkerId
from spotlight.core.work import Request, RequestId, SlotClass, WeightsId, Work

UNMEASURED = 1.0
"""Row-steps per second of a worker while nobody's speed is known: any number, as only ratios matter then."""
SMALL = 64
"""So few numbers are sorted anew without a thought."""


class Team:
    """Workers that share some work, by speed."""

    def __init__(self) -> None:
        self._speeds: dict[WorkerId, float] = {}
        self._fastest: list[tuple[float, WorkerId]] = []
        """A heap of (-speed, worker); entries that no longer tell the truth are passed over."""
        self.total = 0.0

    def __len__(self) -> int:
        return len(self._speeds)

    def add(self, worker: WorkerId, speed: float) -> None:
        self._speeds[worker] = speed
        self.total += speed
        heappush(self._fastest, (-speed, worker))
        if len(self._fastest) > 2 * len(self._speeds) + SMALL:
            self._fastest = [(-each, name) for name, each in self._speeds.items()]
            heapify(self._fastest)

    def remove(self, worker: WorkerId) -> None:
        speed = self._speeds.pop(worker)
        # An empty sum is exactly 0 again, so rounding never builds up from one busy spell to the next.
        self.total = self.total - speed if self._speeds else 0.0

    @property
    def fastest(self) -> float:
        while self._speeds.get(self._fastest[0][1]) != -self._fastest[0][0]:
            heappop(self._fastest)
        return -self._fastest[0][0]


class Measured:
    """The speeds that workers reported; of many, the median is told as of the last eighth of changes."""

    def __init__(self) -> None:
        self._speeds: dict[WorkerId, float] = {}
        self._median = UNMEASURED
        self._changes = 0

    def set(self, worker: WorkerId, speed: float) -> None:
        self._speeds[worker] = speed
        self._changes += 1

    def forget(self, worker: WorkerId) -> None:
        if self._speeds.pop(worker, None) is not None:
            self._changes += 1

    @property
    def median(self) -> float:
        if self._changes and (len(self._speeds) <= SMALL or self._changes >= len(self._speeds) // 8):
            self._changes = 0
            self._median = median(self._speeds.values()) if self._speeds else UNMEASURED
        return self._median


def usable_speed(reported: float | None) -> float | None:
    """The speed that a worker reports, unless it is no speed at all."""
    return reported if reported is not None and isfinite(reported) and reported > 0 else None


PREVIEW = Work.PREVIEW
Key: TypeAlias = tuple[bool, int, int, int]


@dataclass(slots=True, eq=False)
class Ticket:
    """One request that is not finished yet."""

    request: Request
    id: RequestId
    backlog: "Backlog"
    place: int
    """Order of arrival: requests of a group are added in their order."""
    rank: int
    """Of the queue that it waits in."""
    turn: int
    """Of its group within the iteration."""
    steps: int
    remaining: int
    """Row-steps until it is finished; the last bit of work counts as a step too. Changed by `reach` alone."""
    step: int = 0
    """The last committed one: where the next attempt goes on."""
    reached: int = 0
    """How far the live attempt is known to be."""
    moved_at: float = 0.0
    """When `reached` last changed."""
    named_at: float = 0.0
    """When its holder last spoke of it; one that is finished there, and still on its way, is not spoken of."""
    holder: "WorkerRecord | None" = None
    attempt: int = 0
    is_queued: bool = False
    queued_as: int = 0
    """Its valid entry in the queue."""
    was_returned: bool = False
    is_recalled: bool = False

    def reach(self, step: int) -> None:
        """The live attempt is known to be at this step."""
        left = self.steps - step
        self.reached = step
        self.remaining = left if left > 1 else 1

    @property
    def key(self) -> Key:
        """Order within a class: what came back, then iteration by iteration, group by group as they are needed.

        Previews in the order of issue: they end when training does, and by then every group should have had some.
        """
        request = self.request
        turn = 0 if request.work is PREVIEW else self.turn
        return (not self.was_returned, request.iteration, turn, self.place)


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


class Standing(StrEnum):
    """Which work a worker may be given."""

    SERVING = "serving"
    PREVIEWS_ONLY = "previews_only"
    """It may go: nothing that others wait for."""
    LEAVING = "leaving"
    """It goes at the deadline: only what finishes before."""
    DRAINING = "draining"
    """Nothing."""


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """One worker; the scheduler is the only writer."""

    id: WorkerId
    slot_class: SlotClass
    rows: int
    heard_at: float
    backlogs: tuple[Backlog, ...] = ()
    """Of the weights that it holds."""
    speed: float = UNMEASURED
    """Row-steps per second at a full batch: measured, or the median of the others."""
    measured: float | None = None
    free_rows: int = 0
    """Of its standing pull; 0: it does not ask."""
    late_s: float = 0.0
    """Before it could begin with what it asks for."""
    assignments: int = 0
    """How many it was given so far."""
    leases: dict[RequestId, Ticket] = field(default_factory=dict)
    load: int = 0
    """Row-steps that it still has to do."""
    standing: Standing = Standing.SERVING
    deadline: float = inf
    lags: bool = False
    """Whether it may have named an attempt, the last time it did, without having moved it on."""
    counted: bool = False
    """Whether its speed and load are in the balance."""
    refused: Ticket | None = None
    """What it was last refused, because others should have it finished by `promise`."""
    promise: float = inf

    @property
    def room(self) -> int:
        """Rows it may be given: what it asked for, within a limit.

        A result that is being scored is still leased while its row is free again, so a worker may hold up to twice
        its rows; beyond that its pull is out of date.
        """
        limit = 2 * self.rows - len(self.leases)
        return self.free_rows if self.free_rows < limit else limit

    def step_s(self, rows: int, saturating_rows: int) -> float:
        """Seconds of one step of a batch of so many rows."""
        return max(rows, min(saturating_rows, self.rows)) / self.speed

    def finish_s(self, more: int) -> float:
        """Seconds until it has done all it holds and `more` row-steps."""
        return self.late_s + (self.load + more) / self.speed


Asking: TypeAlias = tuple[float, int, WorkerRecord]
"""The speed of one that asks, negative so that the fastest is first; its turn; and who it is."""


class PullQueue:
    """The standing pulls."""

    def __init__(self) -> None:
        self._heap: list[Asking] = []
        self.turns: dict[WorkerId, int] = {}
        """The valid heap entry of each worker that asks and waits to be looked at; read by the scheduler."""
        self._aside: dict[WorkerId, WorkerRecord] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self.turns) + len(self._aside)

    def __iter__(self) -> Iterator[WorkerRecord]:
        """All that ask, fastest first."""
        asking = [worker for _, turn, worker in self._heap if self.turns.get(worker.id) == turn]
        return iter(sorted([*asking, *self._aside.values()], key=lambda worker: (-worker.speed, worker.id)))

    def ask(self, worker: WorkerRecord) -> None:
        """A new pull, or a refused one that is worth another look."""
        self._aside.pop(worker.id, None)
        turn = self._turn = self._turn + 1
        self.turns[worker.id] = turn
        heappush(self._heap, (-worker.speed, turn, worker))

    def wake(self, worker: WorkerRecord) -> None:
        if worker.id in self._aside:
            self.ask(worker)

    def wake_all(self) -> None:
        """Work or shares have changed."""
        turns, heap, turn = self.turns, self._heap, self._turn
        for worker in self._aside.values():
            turn += 1
            turns[worker.id] = turn
            heap.append((-worker.speed, turn, worker))
        self._turn = turn
        heapify(heap)
        self._aside.clear()

    def pop(self) -> WorkerRecord | None:
        """The fastest that asks; the caller serves it or sets it aside."""
        while self._heap:
            _, turn, worker = heappop(self._heap)
            if self.turns.get(worker.id) == turn:
                del self.turns[worker.id]
                return worker
        return None

    def set_aside(self, worker: WorkerRecord) -> None:
        self._aside[worker.id] = worker

    def forget(self, worker: WorkerRecord) -> None:
        self.turns.pop(worker.id, None)
        self._aside.pop(worker.id, None)
