"""Rules for placing rollouts on machines that may vanish, as schedulers; the product has none of them.

A rule changes the speeds that shares are computed from, so a worker that it prefers receives more rows.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec

from spotlight.control.market.weather import Weather
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.core.messages import Pull
from spotlight.core.types import WorkerId
from spotlight.core.work import ReleaseReason, RequestId, SlotClass

ZONES = ("a", "b", "c")
BATCH_S, LONG_S = 30.0, 600.0
"""Horizons over which a machine should survive: a batch of rollouts, and much more."""


class Rule(StrEnum):
    NONE = "none"
    SPREAD = "spread"
    SURVIVAL = "survival"
    OLDER = "older"
    NOTICE = "notice"

    def scheduler(self, weather: Weather) -> Callable[..., Scheduler]:
        match self:
            case Rule.SPREAD:
                return Spread
            case Rule.SURVIVAL:
                return partial(Surviving, weather=weather, horizon_s=BATCH_S)
            case Rule.OLDER:
                return partial(Surviving, weather=weather, horizon_s=LONG_S)
            case _:
                return Scheduler


def zone_of(worker: WorkerId) -> str:
    """Zones follow the numbers of the nodes: `spot-5.2/0.1` is on the fifth."""
    kind, _, number = worker.partition("/")[0].rpartition(".")[0].rpartition("-")
    return ZONES[(int(number) - 1) % len(ZONES)] if kind == "spot" else kind


class Preferring(Scheduler, ABC):
    """Multiplies the reported speeds by a preference."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.joined: dict[WorkerId, float] = {}
        """Time at which each spot worker joined: its machine is about as old."""

    @abstractmethod
    def preference(self, worker: WorkerId, now: float) -> float:
        """Factor of the worker's speed."""

    def join(self, worker: WorkerId, slot_class: SlotClass, rows: int, now: float) -> None:
        if slot_class is SlotClass.SPOT:
            self.joined.setdefault(worker, now)
        super().join(worker, slot_class, rows, now)

    def pull(self, worker: WorkerId, pull: Pull, now: float, late_s: float = 0.0, previews: bool = True) -> None:
        if pull.row_steps_per_s is not None and worker in self.joined:
            speed = pull.row_steps_per_s * self.preference(worker, now)
            pull = msgspec.structs.replace(pull, row_steps_per_s=speed)
        super().pull(worker, pull, now, late_s, previews)

    def lose(self, worker: WorkerId, reason: ReleaseReason, now: float) -> list[RequestId]:
        self.joined.pop(worker, None)
        return super().lose(worker, reason, now)


class Spread(Preferring):
    """All zones that have workers receive equally many rows, so that the loss of any costs the same."""

    def preference(self, worker: WorkerId, now: float) -> float:
        workers = Counter(map(zone_of, self.joined))
        return workers.total() / (len(workers) * workers[zone_of(worker)])


class Surviving(Preferring):
    """A worker counts by the chance that its machine survives the horizon, at its age."""

    def __init__(self, *arguments: Any, weather: Weather, horizon_s: float) -> None:
        super().__init__(*arguments)
        self._weather = weather
        self._horizon_s = horizon_s

    def preference(self, worker: WorkerId, now: float) -> float:
        tail = self._weather.tail
        scale_s = self._weather.median_life_s / (2 ** (1 / tail) - 1)
        age_s = now - self.joined[worker]
        return ((scale_s + age_s) / (scale_s + age_s + self._horizon_s)) ** tail
