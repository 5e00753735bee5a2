"""The meter: a fold over a run's records that says what every slot did, second by second, and what that costs.

A node is billed from `NodeJoined` to `NodeLost`, all its slots, whether they work or not. A second of a slot belongs to
one activity: what its worker reported, else `idle` while a worker is there and `start` while none is. Reports arrive
after the fact and may overlap a little; time that is already accounted for is never accounted for again.

Invariant: the seconds of all activities add up to wall time x slots, at any instant (tests/unit/test_market.py).

    no worker (start) --WorkerJoined--> worker (idle, or as reported) --WorkerLost--> no worker
    NodeJoined opens the node's slots; NodeLost, RunStopped and the last record before RunResumed close them
"""

import msgspec

from spotlight.core.events import (
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

    @property
    def gap(self) -> Activity:
        """What time is spent on that nobody reports."""
        return Activity.START if self.worker is None else Activity.IDLE


class Tally(msgspec.Struct, kw_only=True):
    """Slot-seconds by activity of all slots of one class that are billed by one row of the price table."""

    slot_class: SlotClass
    price: str
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

    def apply(self, record: Record) -> None:
        match record.event:
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
            case Worked() as worked:
                self._work(worked, record.at)
            case RunResumed():
                # Whoever was there when the last controller died died with it.
                self._close_all(self.at)
            case RunStopped():
                self._close_all(record.at)
            case _:
                pass
        self.at = max(self.at, record.at)

    def tallies(self, at: float | None = None) -> list[Tally]:
        """Slot-seconds up to `at` (the last record, if none is given), slots that are still open included."""
        at = self.at if at is None else max(at, self.at)
        tallies = {
            name: Tally(slot_class=t.slot_class, price=t.price, seconds=dict(t.seconds))
            for name, t in self.closed.items()
        }
        for slot in self.open.values():
            _tally(tallies, slot).add(slot.gap, max(0.0, at - slot.until))
        return [tallies[name] for name in sorted(tallies)]

    def slots_open(self, slot_class: SlotClass) -> int:
        return sum(slot.slot_class is slot_class for slot in self.open.values())

    def _work(self, worked: Worked, at: float) -> None:
        slot = self.open.get(slot_of(worked.worker))
        if slot is None or slot.worker != worked.worker:
            return
        self._account(slot, slot.gap, min(worked.start, at))
        self._account(slot, worked.activity, min(worked.end, at))

    def _turn(self, name: str, worker: WorkerId | None, at: float) -> None:
        slot = self.open.get(name)
        if slot is None:
            return
        self._account(slot, slot.gap, at)
        slot.worker = worker

    def _close_node(self, node: str, at: float) -> None:
        for name in [name for name, slot in self.open.items() if slot.node == node]:
            slot = self.open.pop(name)
            self._account(slot, slot.gap, at)

    def _close_all(self, at: float) -> None:
        for slot in self.open.values():
            self._account(slot, slot.gap, at)
        self.open.clear()

    def _account(self, slot: OpenSlot, activity: Activity, until: float) -> None:
        if until > slot.until:
            _tally(self.closed, slot).add(activity, until - slot.until)
            slot.until = until


def _tally(tallies: dict[str, Tally], slot: OpenSlot) -> Tally:
    name = f"{slot.slot_class.value} {slot.price}"
    return tallies.setdefault(name, Tally(slot_class=slot.slot_class, price=slot.price))
