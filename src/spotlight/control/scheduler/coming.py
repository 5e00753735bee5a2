"""Workers that will soon hold some weights: a share of the work is left for them.

After a publication all fetch at the same time and some have the weights first, by a moment or by seconds. Without this
the first would take all there is, and those that come a moment later would find nothing left.

    expect --> AWAITED --its moment passed--> DUE --given up--> (gone)
                  `------holds the weights------`--------------> (gone)

Invariant: no look costs more than O(log n), amortised; nobody is awaited after the moment at which it is given up
(tests/unit/test_scheduler_coming.py).
"""

from dataclasses import dataclass
from heapq import heappop, heappush

from spotlight.core.types import WorkerId


@dataclass(slots=True, eq=False)
class _Awaited:
    """One worker."""

    speed: float
    ready_at: float
    given_up_at: float
    is_due: bool = False


class Coming:
    """Those who fetch the weights of one backlog, and what they will add to its team."""

    def __init__(self) -> None:
        self._awaited: dict[WorkerId, _Awaited] = {}
        self._moments: list[tuple[float, int, WorkerId, _Awaited]] = []
        """When each is due, and then when it is given up; entries of those who left are passed over."""
        self._entries = 0
        self._speed = 0.0
        self._begins = 0.0
        """Of those that are not due: the sum of speed times moment."""
        self._later = 0.0
        """Of those that are not due: the sum of speeds."""

    def __len__(self) -> int:
        return len(self._awaited)

    def expect(self, worker: WorkerId, speed: float, ready_at: float, given_up_at: float) -> None:
        self.forget(worker)
        awaited = self._awaited[worker] = _Awaited(speed, ready_at, given_up_at)
        self._speed += speed
        self._later += speed
        self._begins += speed * ready_at
        self._push(ready_at, worker, awaited)

    def forget(self, worker: WorkerId) -> None:
        awaited = self._awaited.pop(worker, None)
        if awaited is None:
            return
        self._speed -= awaited.speed
        if not awaited.is_due:
            self._later -= awaited.speed
            self._begins -= awaited.speed * awaited.ready_at
        if not self._awaited:
            # Exactly nothing again, so rounding never builds up.
            self._speed = self._later = self._begins = 0.0
            self._moments.clear()

    def at(self, now: float) -> tuple[float, float]:
        """Row-steps per second that they will add, and row-steps that they will be short of having begun later."""
        while self._moments and self._moments[0][0] <= now:
            _, _, worker, awaited = heappop(self._moments)
            if self._awaited.get(worker) is not awaited:
                continue
            if awaited.is_due:
                self.forget(worker)
            else:
                awaited.is_due = True
                self._later -= awaited.speed
                self._begins -= awaited.speed * awaited.ready_at
                self._push(awaited.given_up_at, worker, awaited)
        return self._speed, max(0.0, self._begins - now * self._later)

    def _push(self, moment: float, worker: WorkerId, awaited: _Awaited) -> None:
        self._entries += 1
        heappush(self._moments, (moment, self._entries, worker, awaited))
