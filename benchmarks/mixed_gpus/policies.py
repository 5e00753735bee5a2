"""Schedulers that lack one rule of the product's."""

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import StrEnum
from functools import partial
from math import inf
from typing import Any

import msgspec

from spotlight.control.scheduler.pulls import Assignment
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.core.messages import Pull
from spotlight.core.types import WorkerId
from spotlight.core.work import ReleaseReason, Request, RequestId, WeightsId, Work


class Policy(StrEnum):
    MEASURED = "measured"
    BLIND = "blind"
    EARLY = "early"
    EVEN = "even"

    def scheduler(self, mean_speed: float) -> Callable[..., Scheduler]:
        """The scheduler; `mean_speed` is the fleet's, in row-steps per second."""
        match self:
            case Policy.MEASURED:
                return Scheduler
            case Policy.EARLY:
                return EarlyShares
            case Policy.BLIND:
                return partial(SpeedBlind, mean_speed=mean_speed)
            case Policy.EVEN:
                return partial(EvenSplit, mean_speed=mean_speed)


class EarlyShares(Scheduler):
    """Only workers that hold the weights have a share."""

    def holds(self, worker: WorkerId, weights: Collection[WeightsId], awaited: Collection[WeightsId] = ()) -> None:
        super().holds(worker, weights)


class SpeedBlind(Scheduler):
    """Every worker has the same speed."""

    def __init__(self, *arguments: Any, mean_speed: float) -> None:
        super().__init__(*arguments)
        self._mean_speed = mean_speed

    def pull(self, worker: WorkerId, pull: Pull, now: float, late_s: float = 0.0, previews: bool = True) -> None:
        if pull.row_steps_per_s is not None:
            pull = msgspec.structs.replace(pull, row_steps_per_s=self._mean_speed)
        super().pull(worker, pull, now, late_s, previews)


class EvenSplit(SpeedBlind):
    """Every worker receives the same number of rollouts per iteration; its other pulls are held back."""

    def __init__(self, *arguments: Any, mean_speed: float) -> None:
        super().__init__(*arguments, mean_speed=mean_speed)
        self._offers: dict[WorkerId, Pull] = {}
        """Standing pulls, held back or not."""
        self._left: dict[WorkerId, float] = {}
        """Rollouts that each worker may still receive; without an entry any number."""
        self._now = 0.0

    def add(self, requests: Iterable[Request], steps: Mapping[RequestId, int] | None = None) -> None:
        wanted = list(requests)
        super().add(wanted, steps)
        rollouts = sum(request.work is Work.ROLLOUT for request in wanted)
        idle = [worker for worker, pull in self._offers.items() if pull.free_rows]
        self._left = dict.fromkeys(idle, -(-rollouts // len(idle))) if rollouts and idle else {}
        for worker in idle:
            self._pass_on(worker)

    def pull(self, worker: WorkerId, pull: Pull, now: float, late_s: float = 0.0, previews: bool = True) -> None:
        self._offers[worker], self._now = pull, now
        self._pass_on(worker)

    def assign(self, now: float) -> list[Assignment]:
        found = super().assign(now)
        for assignment in found:
            self._offers.pop(assignment.worker, None)
            if assignment.worker in self._left:
                self._left[assignment.worker] -= len(assignment.leases)
        if self._left and not self.waiting(Work.ROLLOUT):
            # What else waits is for any worker.
            self._left.clear()
            for worker in self._offers:
                self._pass_on(worker)
        return found

    def lose(self, worker: WorkerId, reason: ReleaseReason, now: float) -> list[RequestId]:
        self._offers.pop(worker, None)
        return super().lose(worker, reason, now)

    def _pass_on(self, worker: WorkerId) -> None:
        pull = self._offers[worker]
        rows = int(min(pull.free_rows, self._left.get(worker, inf)))
        super().pull(worker, msgspec.structs.replace(pull, free_rows=rows), self._now)
