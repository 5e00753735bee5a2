"""The meter: what the slots of every line of the bill were held for, in all and in every iteration.

A node is billed from `NodeJoined` to `NodeLost`, all its slots, whether they work or not; what a second of a slot is
spent on is told by `occupancy.py`. Of what is read from the meter, steps that were done again are `lost`
(lost_work.py): in an iteration that is the run's share of its seconds, because steps are not followed by the second.

Invariant: the seconds of all activities add up to wall time x slots, at any instant (tests/unit/test_market.py,
tests/unit/test_market_cost.py), and those of all periods to those of the run (tests/property/test_bubbles_property.py).
"""

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from spotlight.control.market.capacity import is_stand_in
from spotlight.control.market.lost_work import LostWork
from spotlight.control.market.occupancy import Occupancy, OpenSlot
from spotlight.core.events import IterationDone, Record
from spotlight.core.types import WorkerId
from spotlight.core.work import Activity, SlotClass


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


class Period(msgspec.Struct, kw_only=True):
    """From the end of one iteration to that of the next, which it is named by."""

    iteration: int
    start: float
    end: float | None = None
    """None: it is not done yet."""
    tallies: dict[str, Tally] = {}
    """By line of the bill."""


def _copied(tallies: dict[str, Tally]) -> dict[str, Tally]:
    return {
        line: Tally(slot_class=t.slot_class, price=t.price, stands_in=t.stands_in, seconds=dict(t.seconds))
        for line, t in tallies.items()
    }


class CostMeter(msgspec.Struct, kw_only=True):
    """Feed it every record; read it at any instant."""

    slots: Occupancy = msgspec.field(default_factory=Occupancy)
    closed: dict[str, Tally] = {}
    """What is accounted for, by line of the bill."""
    passed: list[Period] = msgspec.field(default_factory=lambda: [Period(iteration=0, start=0.0)])
    """The same, by iteration."""
    ends: list[float] = []
    """Of all periods but the last."""
    lost: LostWork = msgspec.field(default_factory=LostWork)

    def apply(self, record: Record) -> None:
        self.slots.apply(record, self._spent)
        self.lost.apply(record.event, self._line_of)
        if isinstance(record.event, IterationDone):
            self.passed[-1].iteration, self.passed[-1].end = record.event.iteration, record.at
            self.ends.append(record.at)
            self.passed.append(Period(iteration=record.event.iteration + 1, start=record.at))

    def tallies(self, at: float | None = None) -> list[Tally]:
        """Slot-seconds up to `at` (the last record, if none is given), slots that are still open included."""
        tallies = _copied(self.closed)
        for slot, activity, start, end in self.slots.unreported(self._until(at)):
            _tally(tallies, slot).add(activity, end - start)
        return self._settled(tallies)

    def periods(self, at: float | None = None) -> list[tuple[Period, list[Tally]]]:
        """The same by iteration, the one that is under way at the end; without those in which nothing was held."""
        by_period = [_copied(period.tallies) for period in self.passed]
        for slot, activity, start, end in self.slots.unreported(self._until(at)):
            for number, seconds in self._parts(start, end):
                _tally(by_period[number], slot).add(activity, seconds)
        told = zip(self.passed, by_period, strict=True)
        return [(period, self._settled(tallies)) for period, tallies in told if tallies]

    def _until(self, at: float | None) -> float:
        return self.slots.at if at is None else max(at, self.slots.at)

    def _settled(self, tallies: dict[str, Tally]) -> list[Tally]:
        for line, tally in tallies.items():
            tally.seconds = self.lost.split(line, tally.seconds)
        return [tallies[line] for line in sorted(tallies)]

    def _line_of(self, worker: WorkerId) -> str | None:
        slot = self.slots.slot_of(worker)
        return None if slot is None else slot.line

    def _spent(self, slot: OpenSlot, activity: Activity, start: float, end: float) -> None:
        _tally(self.closed, slot).add(activity, end - start)
        for number, seconds in self._parts(start, end):
            _tally(self.passed[number].tallies, slot).add(activity, seconds)

    def _parts(self, start: float, end: float) -> Iterable[tuple[int, float]]:
        """A stretch of time by the periods that it lies in."""
        ends = self.ends
        if not ends or start >= ends[-1]:
            return ((len(ends), end - start),)
        first, last = bisect_right(ends, start), bisect_right(ends, end)
        cuts = [start, *ends[first:last], end]
        return [(first + n, cuts[n + 1] - cuts[n]) for n in range(len(cuts) - 1) if cuts[n + 1] > cuts[n]]


def _tally(tallies: dict[str, Tally], slot: OpenSlot) -> Tally:
    line = slot.line
    tally = tallies.get(line)
    if tally is None:
        stands_in = is_stand_in(slot.node)
        tally = tallies[line] = Tally(slot_class=slot.slot_class, price=slot.price, stands_in=stands_in)
    return tally
