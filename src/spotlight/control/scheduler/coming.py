"""Workers that will soon hold some weights: a share of the work is left for them.

After a publication all fetch at the same time and some have the weights first, by a moment or by seconds. Without this
the first would take all there is, and those that come a moment later would find nothing left.

    expect --> AWAITED --given up--> (gone)
                  `--holds the weights, or has something else to do--> (gone)

Invariant: nobody is awaited after the moment at which it is given up, and who comes when all would be done changes
nothing. A look costs as much as there are moments, a grain apart, at which somebody comes
(tests/unit/test_scheduler_coming.py).
"""

from dataclasses import dataclass
from heapq import heappop, heappush

from spotlight.core.types import WorkerId

GRAIN_S = 0.25
"""Those who come within this are taken to come together."""


@dataclass(slots=True, eq=False)
class _Awaited:
    """One worker."""

    speed: float
    ready_at: float
    moment: int


@dataclass(slots=True)
class _Moment:
    """Those who come together."""

    count: int = 0
    speed: float = 0.0
    begins: float = 0.0
    """The sum of speed times when."""


class Coming:
    """Those who fetch the weights of one backlog, and what they will add to its team."""

    def __init__(self) -> None:
        self._awaited: dict[WorkerId, _Awaited] = {}
        self._moments: dict[int, _Moment] = {}
        self._ends: list[tuple[float, int, WorkerId, _Awaited]] = []
        """When each is given up; entries of those who left are passed over."""
        self._entries = 0

    def __len__(self) -> int:
        return len(self._awaited)

    def expect(self, worker: WorkerId, speed: float, ready_at: float, given_up_at: float) -> None:
        self.forget(worker)
        awaited = self._awaited[worker] = _Awaited(speed, ready_at, int(ready_at / GRAIN_S))
        moment = self._moments.setdefault(awaited.moment, _Moment())
        moment.count += 1
        moment.speed += speed
        moment.begins += speed * ready_at
        self._entries += 1
        heappush(self._ends, (given_up_at, self._entries, worker, awaited))

    def forget(self, worker: WorkerId) -> None:
        awaited = self._awaited.pop(worker, None)
        if awaited is None:
            return
        moment = self._moments[awaited.moment]
        moment.count -= 1
        moment.speed -= awaited.speed
        moment.begins -= awaited.speed * awaited.ready_at
        if not moment.count:
            # Exactly nothing again, so rounding never builds up.
            del self._moments[awaited.moment]
        if not self._awaited:
            self._ends.clear()

    def level_s(self, row_steps: float, speed: float, now: float) -> float:
        """Seconds in which a team of this speed does so much, with everybody who comes before it is done."""
        while self._ends and self._ends[0][0] <= now:
            _, _, worker, awaited = heappop(self._ends)
            if self._awaited.get(worker) is awaited:
                self.forget(worker)
        level_s = row_steps / speed
        for number in sorted(self._moments):
            moment = self._moments[number]
            late_s = max(0.0, moment.begins / moment.speed - now)
            if late_s >= level_s:
                break
            row_steps += moment.speed * late_s
            speed += moment.speed
            level_s = row_steps / speed
        return level_s
