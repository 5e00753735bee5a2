"""Who asks for work: the fastest first, and who was refused waits aside until something changes.

    pull --> ASKING --served--> (not here)
               ^ |
        woken  | |--refused--> ASIDE          woken by the worker's own next word, or by new or returned work
               | `--too late-> DOOMED         the same, but by returned work only if it is short enough to finish
               `-----------------'

Invariant: a round looks only at workers that ask and were not refused since the last change, so a refusal costs nothing
until then (benchmarks/scheduler.py); and no worker that asks is ever forgotten, since its heartbeat wakes it
(tests/unit/test_scheduler.py).
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from spotlight.control.scheduler.workers import Worker
from spotlight.core.types import WorkerId


class Hunger:
    """The standing pulls."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Worker]] = []
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

    def wake(self, worker: Worker) -> None:
        if worker.id in self._aside or worker.id in self._doomed:
            self.ask(worker)

    def wake_all(self) -> None:
        """Shares have changed: who would be too late stays so."""
        if not self._aside:
            return
        turns, heap, turn = self.turns, self._heap, self._turn
        for name, worker in self._aside.items():
            turn += 1
            turns[name] = turn
            heap.append((-worker.speed, turn, worker))
        self._turn = turn
        self._aside.clear()
        heapify(heap)

    def wake_for(self, row_steps: float) -> None:
        """Work of so many row-steps waits now."""
        self.wake_all()
        if row_steps <= self._longest:
            for fits, worker in list(self._doomed.values()):
                if row_steps <= fits:
                    self.ask(worker)
            self._longest = max([fits for fits, _ in self._doomed.values()], default=0.0)

    def pop(self) -> Worker | None:
        """The fastest that asks; the caller serves it or sets it aside."""
        while self._heap:
            _, turn, worker = heappop(self._heap)
            if self.turns.get(worker.id) == turn:
                del self.turns[worker.id]
                return worker
        return None

    def pop_all(self) -> list[Worker]:
        """All that ask, the fastest first: as `pop` would give them one by one."""
        turns = self.turns
        asking = [worker for _, turn, worker in sorted(self._heap) if turns.get(worker.id) == turn]
        turns.clear()
        self._heap.clear()
        return asking

    def top_speed(self) -> float:
        """Nobody who asks is faster, whatever its speed was when it asked."""
        return max([worker.speed for _, _, worker in self._heap], default=0.0)

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
