"""What every slot that is held does, second by second: a fold over a run's records that lays the time out in stretches.

A slot is held from `NodeJoined` to `NodeLost`, whether it works or not. Every stretch of that time is of one activity:
what its worker reported, else `regroup` while its crew was forming, else `idle` while a worker is there and `start`
while none is. Reports arrive after the fact and may overlap a little; time that is already accounted for is never
accounted for again.

Invariant: the stretches of a slot follow one another without a gap or an overlap, from its first instant to its last:
each begins at the very number that the one before it ended with (tests/property/test_bubbles_property.py).

    no worker (start) --WorkerJoined--> worker (idle, or as reported) --WorkerLost--> no worker
    NodeJoined opens the node's slots; NodeLost, RunStopped and the last record before RunResumed close them
"""

from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import lru_cache
from typing import TypeAlias

import msgspec

from spotlight.control.market.capacity import is_stand_in
from spotlight.core.events import (
    BULK,
    AnyEvent,
    Crewing,
    NodeJoined,
    NodeLost,
    Record,
    RunResumed,
    RunStopped,
    Worked,
    WorkerJoined,
    WorkerLost,
)
from spotlight.core.types import WorkerId
from spotlight.core.work import Activity, SlotClass

IDLE = Activity.IDLE
WORKERS_KNOWN = 1 << 15
"""Whose names are not taken apart again for every record: more than the largest runs have at a time."""


@lru_cache(maxsize=WORKERS_KNOWN)
def slot_of(worker: WorkerId) -> str:
    """The slot of a worker, `spot-1.3/0` of `spot-1.3/0.2`: one life of the node, any life of the process."""
    node, _, process = worker.rpartition("/")
    return f"{node}/{process.partition('.')[0]}"


class Tenure(StrEnum):
    """How a slot is held, and what for."""

    RESERVED = "reserved"
    """For the whole run, to train; a slot of a journal that does not tell who trains is one as well."""
    SPOT = "spot"
    ON_DEMAND = "on_demand"
    """At the price of a reserved one, but not to train: in place of spot slots."""


class OpenSlot(msgspec.Struct, kw_only=True):
    """A slot that is held."""

    name: str
    node: str
    slot_class: SlotClass
    price: str
    until: float
    """All time before this is accounted for."""
    worker: WorkerId | None = None
    trains: bool | None = None
    """As its worker says; before the first one comes nothing of its time is accounted for."""
    regroup: tuple[float, float] = (0.0, 0.0)
    """When its crew was last forming."""

    @property
    def account(self) -> str:
        """Name of what it shares with all slots that are held and billed alike."""
        return _account(self.slot_class, self.trains, self.price, self.node)

    @property
    def tenure(self) -> Tenure:
        return _tenure(self.slot_class, self.trains, self.node)

    @property
    def gap(self) -> Activity:
        """What time is spent on that nobody reports."""
        return Activity.START if self.worker is None else Activity.IDLE


def _tenure(slot_class: SlotClass, trains: bool | None, node: str) -> Tenure:
    if slot_class is SlotClass.SPOT:
        return Tenure.SPOT
    return Tenure.ON_DEMAND if trains is False or is_stand_in(node) else Tenure.RESERVED


@lru_cache(maxsize=WORKERS_KNOWN)
def _account(slot_class: SlotClass, trains: bool | None, price: str, node: str) -> str:
    return f"{_tenure(slot_class, trains, node).value} {price}{' stand-in' if is_stand_in(node) else ''}"


Spent: TypeAlias = Callable[[OpenSlot, Activity, float, float], None]
"""Hears of a stretch: whose, what, from, until."""


class Occupancy(msgspec.Struct, kw_only=True):
    """Feed it every record; `spent` hears of every stretch once it is known."""

    at: float = 0.0
    open: dict[str, OpenSlot] = {}
    crews: dict[str, tuple[tuple[WorkerId, ...], ...]] = {}
    """By node."""

    def apply(self, record: Record, spent: Spent) -> None:
        at, event = record.at, record.event
        if isinstance(event, Worked):
            self._work(event, at, spent)
        elif type(event) not in BULK:
            self._change(event, at, spent)
        if at > self.at:
            self.at = at

    def _change(self, event: AnyEvent, at: float, spent: Spent) -> None:
        """Slots come and go, and workers on them."""
        match event:
            case NodeJoined() as joined:
                self._close_node(joined.node, at, spent)
                self._open_node(joined, at)
            case NodeLost(node=node):
                self._close_node(node, at, spent)
            case WorkerJoined() as came:
                self._come(came, at, spent)
            case WorkerLost(worker=worker):
                slot = self.slot_of(worker)
                if slot is not None and slot.worker == worker:
                    self._pass(slot, at, spent)
                    slot.worker = None
            case Crewing() as told:
                self._regroup(told, at)
            case RunResumed():
                # Whoever was there when the last controller died died with it.
                self._close_all(self.at, spent)
            case RunStopped():
                self._close_all(at, spent)
            case _:
                pass

    def unreported(self, at: float) -> Iterator[tuple[OpenSlot, Activity, float, float]]:
        """The stretches of slots that are still held since they were last accounted for, as it seems by then."""
        for slot in self.open.values():
            start = slot.until
            for activity, end in _gap(slot, at):
                yield slot, activity, start, end
                start = end

    def slot_of(self, worker: WorkerId) -> OpenSlot | None:
        return self.open.get(slot_of(worker))

    def _open_node(self, joined: NodeJoined, at: float) -> None:
        for number in range(joined.slots):
            name = f"{joined.node}/{number}"
            self.open[name] = OpenSlot(
                name=name, node=joined.node, slot_class=joined.slot_class, price=joined.price, until=at
            )

    def _work(self, worked: Worked, at: float, spent: Spent) -> None:
        worker, start, end = worked.worker, worked.start, worked.end
        slot = self.open.get(slot_of(worker))
        if slot is None or slot.worker != worker:
            return
        if start > slot.until:
            self._pass(slot, start if start < at else at, spent)
        if end > at:
            end = at
        if worked.activity is IDLE:
            self._pass(slot, end, spent)
        elif end > slot.until:
            spent(slot, worked.activity, slot.until, end)
            slot.until = end

    def _regroup(self, told: Crewing, at: float) -> None:
        """Whose crew is another one now has waited for it, as far as nothing else is reported of that time."""
        before, now = self.crews.get(told.node, ()), told.crews
        self.crews[told.node] = now
        changed = sorted({worker for crew in set(before) ^ set(now) for worker in crew})
        for slot in map(self.slot_of, changed):
            if slot is not None:
                slot.regroup = (max(0.0, at - told.seconds), at)

    def _come(self, came: WorkerJoined, at: float, spent: Spent) -> None:
        slot = self.slot_of(came.worker)
        if slot is not None:
            slot.trains = came.trains
            self._pass(slot, at, spent)
            slot.worker = came.worker

    def _close_node(self, node: str, at: float, spent: Spent) -> None:
        self.crews.pop(node, None)
        number = 0
        while (slot := self.open.pop(f"{node}/{number}", None)) is not None:
            self._pass(slot, at, spent)
            number += 1

    def _close_all(self, at: float, spent: Spent) -> None:
        for slot in self.open.values():
            self._pass(slot, at, spent)
        self.open.clear()
        self.crews.clear()

    def _pass(self, slot: OpenSlot, until: float, spent: Spent) -> None:
        """Time of which nothing was reported."""
        for activity, end in _gap(slot, until):
            self._account(slot, activity, end, spent)

    def _account(self, slot: OpenSlot, activity: Activity, until: float, spent: Spent) -> None:
        if until > slot.until:
            spent(slot, activity, slot.until, until)
            slot.until = until


def _gap(slot: OpenSlot, until: float) -> list[tuple[Activity, float]]:
    """What an open slot did since it was last accounted for, as far as nobody reports: in order, each until when."""
    if until <= slot.until:
        return []
    began, ended = slot.regroup
    if slot.worker is None or not (began < ended and began < until and ended > slot.until):
        return [(slot.gap, until)]
    start, end = max(began, slot.until), min(ended, until)
    told = [(slot.gap, start), (Activity.REGROUP, end), (slot.gap, until)]
    return [part for part, before in zip(told, (slot.until, start, end), strict=True) if part[1] > before]
