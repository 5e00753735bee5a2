"""Who asks for work: the fastest first, and who was refused waits aside until something changes.

    pull --> ASKING --served--> (not here)
               ^ |
               | `--refused--> ASIDE
               `--- woken by the worker's own next message, or by new or returned work

Invariant: a round looks only at workers that ask and were not refused since the last change, so a refusal costs nothing
until then (benchmarks/scheduler/); and no worker that asks is ever forgotten, since its heartbeat wakes it
(tests/unit/test_scheduler.py).
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from spotlight.control.scheduler.workers import Worker
from spotlight.core.types import WorkerId

Asking: TypeAlias = tuple[float, int, Worker]
"""The speed of one that asks, negative so that the fastest is first; its turn; and who it is."""


class Hunger:
    """The standing pulls."""

    def __init__(self) -> None:
        self._heap: list[Asking] = []
        self.turns: dict[WorkerId, int] = {}
        """The valid heap entry of each worker that asks and waits to be looked at; read by the scheduler."""
        self._aside: dict[WorkerId, Worker] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self.turns) + len(self._aside)

    def __iter__(self) -> Iterator[Worker]:
        """All that ask, fastest first."""
        asking = [worker for _, turn, worker in self._heap if self.turns.get(worker.id) == turn]
        return iter(sorted([*asking, *self._aside.values()], key=lambda worker: (-worker.speed, worker.id)))

    def ask(self, worker: Worker) -> None:
        """A new pull, or a refused one that is worth another look."""
        self._aside.pop(worker.id, None)
        turn = self._turn = self._turn + 1
        self.turns[worker.id] = turn
        heappush(self._heap, (-worker.speed, turn, worker))

    def wake(self, worker: Worker) -> None:
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

    def pop(self) -> Worker | None:
        """The fastest that asks; the caller serves it or sets it aside."""
        while self._heap:
            _, turn, worker = heappop(self._heap)
            if self.turns.get(worker.id) == turn:
                del self.turns[worker.id]
                return worker
        return None

    def set_aside(self, worker: Worker) -> None:
        self._aside[worker.id] = worker

    def forget(self, worker: Worker) -> None:
        self.turns.pop(worker.id, None)
        self._aside.pop(worker.id, None)
