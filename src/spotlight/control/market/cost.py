"""The meter: what slots that are held and billed alike spent their time on, in all and in every iteration.

A node is billed from `NodeJoined` to `NodeLost`, all its slots, whether they work or not; what a second of a slot is
spent on is told by `occupancy.py`. Of what is read from the meter, steps that were done again are `lost`
(lost_work.py): in an iteration that is the run's share of its seconds, because steps are not followed by the second.

Invariant: the seconds of all activities add up to wall time x slots, at any instant (tests/unit/test_market.py,
tests/unit/test_market_cost.py), and those of all periods to those of the run (tests/property/test_bubbles_property.py).
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from spotlight.control.market.capacity import is_stand_in
from spotlight.control.market.lost_work import LostWork
from spotlight.control.market.occupancy import Occupancy, OpenSlot, Tenure, slot_of
from spotlight.core.events import IterationDone, Record, Worked
from spotlight.core.types import WorkerId
from spotlight.core.work import Activity, SlotClass


class SlotSeconds(msgspec.Struct, kw_only=True):
    """Slot-seconds by activity of all slots of one class that are billed by one row of the price table."""

    slot_class: SlotClass
    price: str
    stands_in: bool = False
    """Of nodes that were rented in place of spot nodes."""
    seconds: dict[Activity, float] = {}

    def add(self, activity: Activity, seconds: float) -> None:
        self.seconds[activity] = self.seconds.get(activity, 0.0) + seconds

    @property
    def line(self) -> tuple[str, str, bool]:
        """Of the bill."""
        return self.slot_class.value, self.price, self.stands_in

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


class Account(SlotSeconds, kw_only=True):
    """The part of a tally whose slots are also held for the same."""

    tenure: Tenure

    def copy(self) -> "Account":
        return msgspec.structs.replace(self, seconds=dict(self.seconds))


Accounts: TypeAlias = dict[str, Account]
"""By name."""


class Period(msgspec.Struct, kw_only=True):
    """From the end of one iteration to that of the next, which it is named by."""

    iteration: int
    start: float
    end: float | None = None
    """None: it is not done yet."""
    accounts: Accounts = {}


class CostMeter(msgspec.Struct, kw_only=True):
    """Feed it every record; read it at any instant."""

    slots: Occupancy = msgspec.field(default_factory=Occupancy)
    closed: Accounts = {}
    """What is accounted for."""
    passed: list[Period] = msgspec.field(default_factory=lambda: [Period(iteration=0, start=0.0)])
    """The same, by iteration."""
    ends: list[float] = []
    """Of all periods but the last."""
    lost: LostWork = msgspec.field(default_factory=LostWork)

    def apply(self, record: Record) -> None:
        event = record.event
        self.slots.apply(record, self._spent)
        if not isinstance(event, Worked):
            self.lost.apply(event, self._account_of)
        if isinstance(event, IterationDone):
            self.passed[-1].iteration, self.passed[-1].end = event.iteration, record.at
            self.ends.append(record.at)
            self.passed.append(Period(iteration=event.iteration + 1, start=record.at))

    @classmethod
    def replay(cls, records: Iterable[Record]) -> "CostMeter":
        """The meter that was fed these."""
        meter = cls()
        for record in records:
            meter.apply(record)
        return meter

    def accounts(self, at: float | None = None) -> list[Account]:
        """Slot-seconds up to `at` (the last record, if none is given), slots that are still open included."""
        accounts = {name: account.copy() for name, account in self.closed.items()}
        for slot, activity, start, end in self.slots.unreported(self._until(at)):
            _account(accounts, slot.account, slot).add(activity, end - start)
        return self._settled(accounts)

    def tallies(self, at: float | None = None) -> list[SlotSeconds]:
        """The same by line of the bill."""
        tallies: dict[tuple[str, str, bool], SlotSeconds] = {}
        for account in self.accounts(at):
            empty = SlotSeconds(slot_class=account.slot_class, price=account.price, stands_in=account.stands_in)
            tally = tallies.setdefault(account.line, empty)
            for activity, seconds in account.seconds.items():
                tally.add(activity, seconds)
        return [tallies[line] for line in sorted(tallies)]

    def periods(self, at: float | None = None) -> list[tuple[Period, list[Account]]]:
        """The accounts by iteration, the one that is under way at the end; without those in which nothing was held."""
        parted = [{name: account.copy() for name, account in period.accounts.items()} for period in self.passed]
        for slot, activity, start, end in self.slots.unreported(self._until(at)):
            for number, seconds in self._parts(start, end):
                _account(parted[number], slot.account, slot).add(activity, seconds)
        told = zip(self.passed, parted, strict=True)
        return [(period, self._settled(accounts)) for period, accounts in told if accounts]

    def _until(self, at: float | None) -> float:
        return self.slots.at if at is None else max(at, self.slots.at)

    def _settled(self, accounts: Accounts) -> list[Account]:
        for name, account in accounts.items():
            account.seconds = self.lost.split(name, account.seconds)
        return [accounts[name] for name in sorted(accounts)]

    def _account_of(self, worker: WorkerId) -> str | None:
        slot = self.slots.open.get(slot_of(worker))
        return None if slot is None else slot.account

    def _spent(self, slot: OpenSlot, activity: Activity, start: float, end: float) -> None:
        name, ends = slot.account, self.ends
        _account(self.closed, name, slot).add(activity, end - start)
        if not ends or start >= ends[-1]:
            _account(self.passed[-1].accounts, name, slot).add(activity, end - start)
            return
        for number, seconds in self._parts(start, end):
            _account(self.passed[number].accounts, name, slot).add(activity, seconds)

    def _parts(self, start: float, end: float) -> Iterable[tuple[int, float]]:
        """A stretch of time by the periods that it lies in."""
        ends = self.ends
        if not ends or start >= ends[-1]:
            return ((len(ends), end - start),)
        first, last = bisect_right(ends, start), bisect_right(ends, end)
        cuts = [start, *ends[first:last], end]
        return [(first + n, cuts[n + 1] - cuts[n]) for n in range(len(cuts) - 1) if cuts[n + 1] > cuts[n]]


def _account(accounts: Accounts, name: str, slot: OpenSlot) -> Account:
    account = accounts.get(name)
    if account is None:
        account = accounts[name] = Account(
            tenure=slot.tenure, slot_class=slot.slot_class, price=slot.price, stands_in=is_stand_in(slot.node)
        )
    return account
