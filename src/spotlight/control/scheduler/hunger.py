"""Who asks for work: the fastest first, and who was refused waits aside until something changes.

    pull --> ASKING --served--> (not here)
               ^ |
        woken  | |--refused--> ASIDE          woken by the worker's own next word, or by new or returned work
               | `--too late-> DOOMED         the same, but by returned work only if it is short enough to finish
               `-----------------'

Invariant: a round looks only at workers that ask and were not refused since the last change, so a refusal costs nothing
until then (benchmarks/scheduler/); and no worker that asks is ever forgotten, since its heartbeat wakes it
(tests/unit/test_scheduler.py).
"""

from collections.abc import Iterator, Sequence
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
        self._doomed: dict[WorkerId, tuple[float, Worker]] = {}
        """Those who go before they could finish what waits, with the row-steps that they could."""
        self._longest = 0.0
        """None of them could finish more than this."""
        self._turn = 0

    def __len__(self) -> int:
        return len(self.turns) + len(self._aside) + len(self._doomed)

    @property
    def is_hopeful(self) -> bool:
        """Whether anybody asks who has time for what waits."""
        return bool(self.turns or self._aside)

    def __iter__(self) -> Iterator[Worker]:
        """All that ask, fastest first."""
        asking = [worker for _, turn, worker in self._heap if self.turns.get(worker.id) == turn]
        doomed = [worker for _, worker in self._doomed.values()]
        return iter(sorted([*asking, *self._aside.values(), *doomed], key=lambda worker: (-worker.speed, worker.id)))

    def ask(self, worker: Worker) -> None:
        """A new pull, or a refused one that is worth another look."""
        name = worker.id
        if name in self._aside:
            del self._aside[name]
        elif name in self._doomed:
            del self._doomed[name]
        turn = self._turn = self._turn + 1
        self.turns[name] = turn
        heappush(self._heap, (-worker.speed, turn, worker))

    def _ask_all(self, workers: Sequence[Worker]) -> None:
        """As `ask` one after the other, of some who are nowhere else by now."""
        turns, heap, turn = self.turns, self._heap, self._turn
        for worker in workers:
            turn += 1
            turns[worker.id] = turn
            heap.append((-worker.speed, turn, worker))
        self._turn = turn
        heapify(heap)

    def wake(self, worker: Worker) -> None:
        if worker.id in self._aside or worker.id in self._doomed:
            self.ask(worker)

    def wake_all(self) -> None:
        """Shares have changed: who would be too late stays so."""
        if self._aside:
            workers = list(self._aside.values())
            self._aside.clear()
            self._ask_all(workers)

    def wake_for(self, row_steps: float) -> None:
        """Work of so many row-steps waits now."""
        self.wake_all()
        if row_steps <= self._longest:
            hopeful = [worker for fits, worker in self._doomed.values() if row_steps <= fits]
            for worker in hopeful:
                del self._doomed[worker.id]
            self._ask_all(hopeful)
            self._longest = max([fits for fits, _ in self._doomed.values()], default=0.0)

    def pop(self) -> Worker | None:
        """The fastest that asks; the caller serves it or sets it aside."""
        while self._heap:
            _, turn, worker = heappop(self._heap)
            if self.turns.get(worker.id) == turn:
                del self.turns[worker.id]
                return worker
        return None

    def pop_all(self) -> list[Asking]:
        """All that ask, the fastest first: as `pop` would give them one by one."""
        turns = self.turns
        asking = [entry for entry in sorted(self._heap) if turns.get(entry[2].id) == entry[1]]
        turns.clear()
        self._heap.clear()
        return asking

    def put_back(self, asking: Sequence[Asking]) -> None:
        """All of them still ask, in the same order; nobody has asked since."""
        self._heap += asking
        for _, turn, worker in asking:
            self.turns[worker.id] = turn

    def set_aside(self, worker: Worker) -> None:
        self._aside[worker.id] = worker

    def set_doomed(self, worker: Worker, row_steps: float) -> None:
        """It could finish no more than this before it goes."""
        self._doomed[worker.id] = (row_steps, worker)
        self._longest = max(self._longest, row_steps)

    def forget(self, worker: Worker) -> None:
        self.turns.pop(worker.id, None)
        self._aside.pop(worker.id, None)
        self._doomed.pop(worker.id, None)
