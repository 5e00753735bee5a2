"""State of the scheduler: requests, the queues they wait in, workers and their speeds.

From `add` until it is accepted or dropped, a request waits in a queue or is held by one worker, never both, so none is
lost and none is served twice (tests/property/test_scheduler_property.py):

    add --> QUEUED --lease--> HELD --done--> (gone)
              ^                |
              `--- requeue ----'     handed back, recalled, lost: first in line, from its last committed step

A worker's standing follows its notice, and only `lose` removes a worker (tests/unit/test_scheduler_faults.py):

    SERVING --advisory notice--> PREVIEWS_ONLY --imminent notice--> LEAVING --withdrawn--> SERVING
    any of them --drain--> DRAINING, for good

Invariants: within a class returned requests are served first, then by iteration, then in group order (previews in the
order of issue); the sums kept here equal those over the tickets (tests/unit/test_scheduler.py); no sum, maximum or
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
"""Row-steps per second of every worker until one is measured: any number, as only ratios matter then."""
SMALL = 64
"""Number of values that are cheap to sort at every change."""


class Team:
    """Workers that share one backlog, by speed."""

    def __init__(self) -> None:
        self._speeds: dict[WorkerId, float] = {}
        self._fastest: list[tuple[float, WorkerId]] = []
        """Heap of (-speed, worker); `fastest` skips outdated entries."""
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
        # An empty sum is exactly 0 again, so rounding errors do not accumulate.
        self.total = self.total - speed if self._speeds else 0.0

    @property
    def fastest(self) -> float:
        while self._speeds.get(self._fastest[0][1]) != -self._fastest[0][0]:
            heappop(self._fastest)
        return -self._fastest[0][0]


class MeasuredSpeeds:
    """Reported speeds and their median; of many, the median is updated after an eighth of them changed."""

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


def usable(reported: float | None) -> float | None:
    """The reported number if it is finite and positive, else None."""
    return reported if reported is not None and isfinite(reported) and reported > 0 else None


PREVIEW = Work.PREVIEW
Key: TypeAlias = tuple[bool, int, int, int]


@dataclass(slots=True, eq=False)
class Ticket:
    """One unfinished request."""

    request: Request
    id: RequestId
    backlog: "Backlog"
    place: int
    """Order of arrival: requests of a group are added in their order."""
    rank: int
    """Rank of its queue."""
    group_order: int
    """Position at which its group is needed within the iteration."""
    steps: int
    remaining: int
    """Row-steps until it is finished, at least 1: decoding and scoring count as a step. Only `reach` changes it."""
    step: int = 0
    """Last committed step, from which the next attempt resumes."""
    reached: int = 0
    """Last reported step of the live attempt."""
    moved_at: float = 0.0
    """Time at which `reached` last changed."""
    reported_at: float = 0.0
    """Time at which its holder last reported it; a finished request in transit is not reported."""
    holder: "WorkerRecord | None" = None
    attempt: int = 0
    is_queued: bool = False
    queued_as: int = 0
    """Number of its valid entry in the queue."""
    was_returned: bool = False
    is_recalled: bool = False

    def reach(self, step: int) -> None:
        """Record the step of the live attempt."""
        left = self.steps - step
        self.reached = step
        self.remaining = left if left > 1 else 1

    @property
    def key(self) -> Key:
        """Order within a class: returned requests, then by iteration, then in group order.

        Previews keep the order of issue: they end when training does, and by then every group should have had some.
        """
        request = self.request
        group_order = 0 if request.work is PREVIEW else self.group_order
        return (not self.was_returned, request.iteration, group_order, self.place)


PREVIEW_RANK = Work.PREVIEW.rank


Entry: TypeAlias = tuple[int, int, int, int, int, Ticket]
"""Key, number of the push, ticket."""


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
        """Return the first waiting ticket; entries of tickets that left, or were pushed again, are void."""
        heap = self._heap
        while True:
            entry = heap[0]
            ticket = entry[5]
            if ticket.is_queued and ticket.queued_as == entry[4]:
                return ticket
            heappop(heap)

    def withdraw(self, ticket: Ticket) -> None:
        """Remove a ticket; its heap entry is cleared when it comes up."""
        ticket.is_queued = False
        self.count -= 1
        self.row_steps -= ticket.remaining


class Backlog:
    """Queues, team and load of one set of weights."""

    def __init__(self, weights: WeightsId) -> None:
        self.weights = weights
        self.queues = [Queue() for _ in Work]
        """By rank: rollouts, audits (or with the rollouts of their group), evaluation, previews."""
        self.team = Team()
        """Workers that share this work: they hold or fetch the weights, serve, and have a standing pull or leases."""
        self.load = 0
        """Row-steps of all kinds that the team holds."""
        self.awaited = 0
        """Members of the team that still fetch the weights."""
        self.holders = 0
        """Number of workers that hold or fetch the weights."""
        self.unfinished = [0 for _ in Work]
        """Number of requests that wait or are held, by rank."""

    def level_s(self, waiting: int) -> float:
        """Seconds in which the team together would finish `waiting` row-steps and all it holds."""
        return (waiting + self.load) / self.team.total if self.team else inf

    def left_s(self) -> float:
        """Seconds in which the team would finish everything that waits and all it holds."""
        return self.level_s(sum(queue.row_steps for queue in self.queues))

    @property
    def waits(self) -> bool:
        """Whether any request but previews waits."""
        return any(queue.count for queue in self.queues[:PREVIEW_RANK])

    @property
    def is_needed(self) -> bool:
        """Whether a worker holds or fetches the weights, or a request uses them."""
        return bool(self.holders) or any(self.unfinished)


class Standing(StrEnum):
    """Kinds of work that a worker may receive."""

    SERVING = "serving"
    PREVIEWS_ONLY = "previews_only"
    """It may be preempted: no work but previews."""
    LEAVING = "leaving"
    """It is preempted at the deadline: only work that finishes before."""
    DRAINING = "draining"
    """No work."""


LEAVING = Standing.LEAVING


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """One worker; the scheduler is the only writer."""

    id: WorkerId
    slot_class: SlotClass
    rows: int
    seen_at: float
    excused_at: float = -inf
    """Last time at which its node's connection was broken."""
    backlogs: tuple[Backlog, ...] = ()
    """Backlogs of the weights that it holds."""
    shared: tuple[Backlog, ...] = ()
    """Backlogs that it has a share of: those, and those of weights that it is about to hold."""
    speed: float = UNMEASURED
    """Row-steps per second at a full batch: measured, or the median of the others."""
    measured: float | None = None
    saturating_rows: float = 1.0
    """Rows that would take as long at its speed as a step of its smallest batch. Measured, or assumed before."""
    free_rows: int = 0
    """Free rows of its standing pull; 0 if it has none."""
    late_s: float = 0.0
    """Seconds until it could begin the rows of its pull."""
    takes_previews: bool = True
    """Whether its pull is for previews too."""
    assignments: int = 0
    """Number of assignments so far."""
    pulls: int = 0
    """Number of its newest pull."""
    leases: dict[RequestId, Ticket] = field(default_factory=dict)
    load: int = 0
    """Row-steps of its leases that remain."""
    standing: Standing = Standing.SERVING
    deadline: float = inf
    lags: bool = False
    """Whether its last report may have repeated a step of some attempt."""
    counted: bool = False
    """Whether its speed and load are in the balance's sums."""
    refused: Ticket | None = None
    """Ticket that it was last refused, because faster workers should finish it by `promise`."""
    promise: float = inf

    @property
    def room(self) -> int:
        """Rows that it may receive: the free rows of its pull, within a limit.

        A request that is being scored is leased while its row is free again, so a worker may hold up to twice its rows;
        beyond that its pull is out of date.
        """
        limit = 2 * self.rows - len(self.leases)
        return self.free_rows if self.free_rows < limit else limit

    @property
    def batch(self) -> int:
        """Rows of its batch; those of requests that are being scored are free again."""
        return min(len(self.leases), self.rows - self.free_rows)

    def step_s(self, rows: int) -> float:
        """Seconds of one step of a batch of `rows` rows."""
        return max(rows, self.saturating_rows) / self.speed

    def finish_s(self, more: int) -> float:
        """Seconds until it finishes all it holds and `more` row-steps."""
        return self.late_s + (self.load + more) / self.speed


PullEntry: TypeAlias = tuple[float, int, WorkerRecord]
"""Negative speed, so that the fastest worker is first; number of the entry; worker."""


REPLACED_LIMIT = 1024
"""Replaced pulls that may wait in the heap: while no request waits, none is taken out of it."""


class PullQueue:
    """Standing pulls, the fastest worker first."""

    def __init__(self) -> None:
        self._heap: list[PullEntry] = []
        self.entries: dict[WorkerId, int] = {}
        """Number of the valid heap entry of each worker whose pull is to be considered; read by the scheduler."""
        self._aside: dict[WorkerId, WorkerRecord] = {}
        self._leaving: dict[WorkerId, WorkerRecord] = {}
        """Pulls of workers about to leave, which `wake_all` passes over."""
        self._entry = 0

    def __len__(self) -> int:
        return len(self.entries) + len(self._aside) + len(self._leaving)

    def __iter__(self) -> Iterator[WorkerRecord]:
        """All workers with a standing pull, the fastest first."""
        considered = [worker for _, entry, worker in self._heap if self.entries.get(worker.id) == entry]
        waiting = [*considered, *self._aside.values(), *self._leaving.values()]
        return iter(sorted(waiting, key=lambda worker: (-worker.speed, worker.id)))

    def push(self, worker: WorkerRecord) -> None:
        """Add a new pull, or return one that was set aside."""
        self._aside.pop(worker.id, None)
        self._leaving.pop(worker.id, None)
        entry = self._entry = self._entry + 1
        self.entries[worker.id] = entry
        heappush(self._heap, (-worker.speed, entry, worker))
        if len(self._heap) > 2 * len(self.entries) + REPLACED_LIMIT:
            self._heap = [each for each in self._heap if self.entries.get(each[2].id) == each[1]]
            heapify(self._heap)

    def wake(self, worker: WorkerRecord) -> None:
        if worker.id in self._aside or worker.id in self._leaving:
            self.push(worker)

    def wake_all(self) -> None:
        """Consider every pull again: requests or shares have changed.

        A worker about to leave rarely finishes a request in time, so its pull waits for its next message: with
        thousands of workers these refusals would cost more than all other decisions (benchmarks/scale/).
        """
        if not self._aside:
            return
        aside, self._aside = self._aside, {}
        entries, heap, entry = self.entries, self._heap, self._entry
        for worker in aside.values():
            if worker.standing is LEAVING:
                self._leaving[worker.id] = worker
                continue
            entry += 1
            entries[worker.id] = entry
            heap.append((-worker.speed, entry, worker))
        self._entry = entry
        heapify(heap)

    def pop(self) -> WorkerRecord | None:
        """Remove and return the fastest worker; the caller serves its pull or sets it aside."""
        while self._heap:
            _, entry, worker = heappop(self._heap)
            if self.entries.get(worker.id) == entry:
                del self.entries[worker.id]
                return worker
        return None

    def set_aside(self, worker: WorkerRecord) -> None:
        self._aside[worker.id] = worker

    def forget(self, worker: WorkerRecord) -> None:
        self.entries.pop(worker.id, None)
        self._aside.pop(worker.id, None)
        self._leaving.pop(worker.id, None)
