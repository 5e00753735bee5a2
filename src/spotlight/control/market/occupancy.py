"""The activity of every held slot over time: a fold over a run's records that splits the time into spans.

A slot is held from `NodeJoined` to `NodeLost`, whether it works or not. Every span of that time has one activity: the
one that its worker reported, else `regroup` while its crew was forming, else `idle` with a worker and `start` without
one. Reports arrive later and may overlap slightly; time is accounted for only once.

Invariant: the spans of a slot follow one another without a gap or an overlap: each starts at exactly the number at
which the previous one ended (tests/property/test_bubbles_property.py).

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
"""Size of the cache of worker names; above the number of workers of the largest runs."""


@lru_cache(maxsize=WORKERS_KNOWN)
def slot_of(worker: WorkerId) -> str:
    """Name of a worker's slot: `spot-1.3/0` for `spot-1.3/0.2`."""
    node, _, process = worker.rpartition("/")
    return f"{node}/{process.partition('.')[0]}"


class Tenure(StrEnum):
    """Kind of tenure of a slot."""

    RESERVED = "reserved"
    """Held for the whole run, for training; also if the journal does not record whether the worker trains."""
    SPOT = "spot"
    ON_DEMAND = "on_demand"
    """Held at the reserved price in place of spot slots, not for training."""


class OpenSlot(msgspec.Struct, kw_only=True):
    """A held slot."""

    name: str
    node: str
    slot_class: SlotClass
    price: str
    until: float
    """End of the accounted time."""
    worker: WorkerId | None = None
    trains: bool | None = None
    """Whether the worker trains; no time is accounted for before the first worker joins."""
    regroup: tuple[float, float] = (0.0, 0.0)
    """Start and end of the last forming of its crew."""

    @property
    def account(self) -> str:
        """Name of the account of all slots with the same tenure and price."""
        return _account(self.slot_class, self.trains, self.price, self.node)

    @property
    def tenure(self) -> Tenure:
        return _tenure(self.slot_class, self.trains, self.node)

    @property
    def gap(self) -> Activity:
        """Activity of unreported time."""
        return Activity.START if self.worker is None else Activity.IDLE


def _tenure(slot_class: SlotClass, trains: bool | None, node: str) -> Tenure:
    if slot_class is SlotClass.SPOT:
        return Tenure.SPOT
    return Tenure.ON_DEMAND if trains is False or is_stand_in(node) else Tenure.RESERVED


@lru_cache(maxsize=WORKERS_KNOWN)
def _account(slot_class: SlotClass, trains: bool | None, price: str, node: str) -> str:
    return f"{_tenure(slot_class, trains, node).value} {price}{' stand-in' if is_stand_in(node) else ''}"


Spent: TypeAlias = Callable[[OpenSlot, Activity, float, float], None]
"""Receives a span: slot, activity, start, end."""


class Occupancy(msgspec.Struct, kw_only=True):
    """A fold of all records; calls `spent` with every span once it is known."""

    at: float = 0.0
    open: dict[str, OpenSlot] = {}
    crews: dict[str, tuple[tuple[WorkerId, ...], ...]] = {}
    """Crews by node."""

    def apply(self, record: Record, spent: Spent) -> None:
        at, event = record.at, record.event
        if isinstance(event, Worked):
            self._work(event, at, spent)
        elif type(event) not in BULK:
            self._change(event, at, spent)
        if at > self.at:
            self.at = at

    def _change(self, event: AnyEvent, at: float, spent: Spent) -> None:
        """Open and close slots, and attach and detach their workers."""
        match event:
            case NodeJoined() as joined:
                self._close_node(joined.node, at, spent)
                self._open_node(joined, at)
            case NodeLost(node=node):
                self._close_node(node, at, spent)
            case WorkerJoined() as worker_joined:
                self._attach_worker(worker_joined, at, spent)
            case WorkerLost(worker=worker):
                slot = self.slot_of(worker)
                if slot is not None and slot.worker == worker:
                    self._account_gap(slot, at, spent)
                    slot.worker = None
            case Crewing() as crewing:
                self._regroup(crewing, at)
            case RunResumed():
                # All nodes ended with the previous controller.
                self._close_all(self.at, spent)
            case RunStopped():
                self._close_all(at, spent)
            case _:
                pass

    def unreported(self, at: float) -> Iterator[tuple[OpenSlot, Activity, float, float]]:
        """Yield the spans of held slots after their accounted time, as known at `at`."""
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
            self._account_gap(slot, start if start < at else at, spent)
        if end > at:
            end = at
        if worked.activity is IDLE:
            self._account_gap(slot, end, spent)
        elif end > slot.until:
            spent(slot, worked.activity, slot.until, end)
            slot.until = end

    def _regroup(self, crewing: Crewing, at: float) -> None:
        """Mark the forming time of every worker whose crew changed; it applies to unreported time only."""
        before, now = self.crews.get(crewing.node, ()), crewing.crews
        self.crews[crewing.node] = now
        changed = sorted({worker for crew in set(before) ^ set(now) for worker in crew})
        for slot in map(self.slot_of, changed):
            if slot is not None:
                slot.regroup = (max(0.0, at - crewing.seconds), at)

    def _attach_worker(self, joined: WorkerJoined, at: float, spent: Spent) -> None:
        slot = self.slot_of(joined.worker)
        if slot is not None:
            slot.trains = joined.trains
            self._account_gap(slot, at, spent)
            slot.worker = joined.worker

    def _close_node(self, node: str, at: float, spent: Spent) -> None:
        self.crews.pop(node, None)
        number = 0
        while (slot := self.open.pop(f"{node}/{number}", None)) is not None:
            self._account_gap(slot, at, spent)
            number += 1

    def _close_all(self, at: float, spent: Spent) -> None:
        for slot in self.open.values():
            self._account_gap(slot, at, spent)
        self.open.clear()
        self.crews.clear()

    def _account_gap(self, slot: OpenSlot, until: float, spent: Spent) -> None:
        """Account for unreported time."""
        for activity, end in _gap(slot, until):
            self._account(slot, activity, end, spent)

    def _account(self, slot: OpenSlot, activity: Activity, until: float, spent: Spent) -> None:
        if until > slot.until:
            spent(slot, activity, slot.until, until)
            slot.until = until


def _gap(slot: OpenSlot, until: float) -> list[tuple[Activity, float]]:
    """Return the unreported activities of an open slot after its accounted time, in order, each with its end."""
    if until <= slot.until:
        return []
    began, ended = slot.regroup
    if slot.worker is None or not (began < ended and began < until and ended > slot.until):
        return [(slot.gap, until)]
    start, end = max(began, slot.until), min(ended, until)
    parts = [(slot.gap, start), (Activity.REGROUP, end), (slot.gap, until)]
    return [part for part, before in zip(parts, (slot.until, start, end), strict=True) if part[1] > before]
