"""The meter: a fold over a run's records that says what every slot did, second by second, and what that costs.

A node is billed from `NodeJoined` to `NodeLost`, all its slots, whether they work or not. A second of a slot belongs to
one activity: what its worker reported, else `regroup` while its crew was forming, else `idle` while a worker is there
and `start` while none is. Reports arrive after the fact and may overlap a little; time that is already accounted for is
never accounted for again. Of what is read from the meter, steps that were done again are `lost` (lost_work.py).

Invariant: the seconds of all activities add up to wall time x slots, at any instant (tests/unit/test_market.py,
tests/unit/test_market_cost.py).

    no worker (start) --WorkerJoined--> worker (idle, or as reported) --WorkerLost--> no worker
    NodeJoined opens the node's slots; NodeLost, RunStopped and the last record before RunResumed close them
"""

from functools import lru_cache

import msgspec

from spotlight.control.market.capacity import is_stand_in
from spotlight.control.market.lost_work import LostWork
from spotlight.core.events import (
    Accepted,
    Crewing,
    Holding,
    Leased,
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


class OpenSlot(msgspec.Struct, kw_only=True):
    """A slot that is being billed."""

    node: str
    slot_class: SlotClass
    price: str
    until: float
    """All time before this is accounted for."""
    worker: WorkerId | None = None
    regroup: tuple[float, float] = (0.0, 0.0)
    """When its crew was last forming."""

    @property
    def line(self) -> str:
        """Of the bill."""
        return _line(self.slot_class, self.price, self.node)

    @property
    def gap(self) -> Activity:
        """What time is spent on that nobody reports."""
        return Activity.START if self.worker is None else Activity.IDLE


@lru_cache(maxsize=WORKERS_KNOWN)
def _line(slot_class: SlotClass, price: str, node: str) -> str:
    return f"{slot_class.value} {price}{' stand-in' if is_stand_in(node) else ''}"


class Tally(msgspec.Struct, kw_only=True):
    """Slot-seconds by activity of all slots of one class that are billed by one row of the price table."""

    slot_class: SlotClass
    price: str
    stands_in: bool = False
    """Of nodes that were rented in place of spot nodes."""
    seconds: dict[Activity, float] = {}

    def add(self, activity: Activity, seconds: float) -> None:
        self.seconds[activity] = self.seconds.get(activity, 0.0) + seconds

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


class CostMeter(msgspec.Struct, kw_only=True):
    """Feed it every record; read it at any instant."""

    at: float = 0.0
    open: dict[str, OpenSlot] = {}
    closed: dict[str, Tally] = {}
    crews: dict[str, tuple[tuple[WorkerId, ...], ...]] = {}
    """By node."""
    lost: LostWork = msgspec.field(default_factory=LostWork)

    def apply(self, record: Record) -> None:
        match record.event:
            case Worked() as worked:
                self._work(worked, record.at)
            case Leased() | Accepted() | Holding():
                # With `Worked`, nearly all of a journal.
                pass
            case NodeJoined() as joined:
                self._close_node(joined.node, record.at)
                for number in range(joined.slots):
                    self.open[f"{joined.node}/{number}"] = OpenSlot(
                        node=joined.node, slot_class=joined.slot_class, price=joined.price, until=record.at
                    )
            case NodeLost(node=node):
                self._close_node(node, record.at)
            case WorkerJoined(worker=worker):
                self._turn(slot_of(worker), worker, record.at)
            case WorkerLost(worker=worker):
                slot = self.open.get(slot_of(worker))
                if slot is not None and slot.worker == worker:
                    self._turn(slot_of(worker), None, record.at)
            case Crewing() as told:
                self._regroup(told, record.at)
            case RunResumed():
                # Whoever was there when the last controller died died with it.
                self._close_all(self.at)
            case RunStopped():
                self._close_all(record.at)
            case _:
                pass
        self.lost.apply(record.event, self._line_of)
        if record.at > self.at:
            self.at = record.at

    def tallies(self, at: float | None = None) -> list[Tally]:
        """Slot-seconds up to `at` (the last record, if none is given), slots that are still open included."""
        at = self.at if at is None else max(at, self.at)
        tallies = {
            name: Tally(slot_class=t.slot_class, price=t.price, stands_in=t.stands_in, seconds=dict(t.seconds))
            for name, t in self.closed.items()
        }
        for slot in self.open.values():
            for activity, seconds in _gap(slot, max(at, slot.until)):
                _tally(tallies, slot).add(activity, seconds)
        for line, tally in tallies.items():
            tally.seconds = self.lost.split(line, tally.seconds)
        return [tallies[name] for name in sorted(tallies)]

    def slots_open(self, slot_class: SlotClass) -> int:
        return sum(slot.slot_class is slot_class for slot in self.open.values())

    def _line_of(self, worker: WorkerId) -> str | None:
        slot = self.open.get(slot_of(worker))
        return None if slot is None else slot.line

    def _work(self, worked: Worked, at: float) -> None:
        slot = self.open.get(slot_of(worked.worker))
        if slot is None or slot.worker != worked.worker:
            return
        end = worked.end if worked.end < at else at
        self._pass(slot, worked.start if worked.start < at else at)
        if worked.activity is IDLE:
            self._pass(slot, end)
        else:
            self._account(slot, worked.activity, end)

    def _regroup(self, told: Crewing, at: float) -> None:
        """Whose crew is another one now has waited for it, as far as nothing else is reported of that time."""
        before, now = self.crews.get(told.node, ()), told.crews
        self.crews[told.node] = now
        changed = sorted({worker for crew in set(before) ^ set(now) for worker in crew})
        for slot in (self.open.get(slot_of(worker)) for worker in changed):
            if slot is not None:
                slot.regroup = (max(0.0, at - told.seconds), at)

    def _turn(self, name: str, worker: WorkerId | None, at: float) -> None:
        slot = self.open.get(name)
        if slot is None:
            return
        self._pass(slot, at)
        slot.worker = worker

    def _close_node(self, node: str, at: float) -> None:
        self.crews.pop(node, None)
        number = 0
        while (slot := self.open.pop(f"{node}/{number}", None)) is not None:
            self._pass(slot, at)
            number += 1

    def _close_all(self, at: float) -> None:
        for slot in self.open.values():
            self._pass(slot, at)
        self.open.clear()
        self.crews.clear()

    def _pass(self, slot: OpenSlot, until: float) -> None:
        """Time of which nothing was reported."""
        if until <= slot.until:
            return
        for activity, seconds in _gap(slot, until):
            self._account(slot, activity, slot.until + seconds)

    def _account(self, slot: OpenSlot, activity: Activity, until: float) -> None:
        if until > slot.until:
            _tally(self.closed, slot).add(activity, until - slot.until)
            slot.until = until


def _gap(slot: OpenSlot, until: float) -> list[tuple[Activity, float]]:
    """What an open slot did since it was last accounted for, as far as nobody reports: in order, with seconds."""
    began, ended = slot.regroup
    overlaps = began < ended and began < until and ended > slot.until
    if slot.worker is None or until <= slot.until or not overlaps:
        return [(slot.gap, max(0.0, until - slot.until))]
    start, end = max(began, slot.until), min(ended, until)
    return [(slot.gap, start - slot.until), (Activity.REGROUP, end - start), (slot.gap, until - end)]


def _tally(tallies: dict[str, Tally], slot: OpenSlot) -> Tally:
    line = slot.line
    tally = tallies.get(line)
    if tally is None:
        stands_in = is_stand_in(slot.node)
        tally = tallies[line] = Tally(slot_class=slot.slot_class, price=slot.price, stands_in=stands_in)
    return tally
