"""The cost meter: slot-seconds by activity of each account (slots of one tenure and price), per run and iteration.

A node is billed from `NodeJoined` to `NodeLost`, all its slots, whether they work or not; `occupancy.py` determines
the activity of each second. Redone steps count as `lost` (lost_work.py); an iteration's lost share is that of the run,
because steps have no times.

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
    """Slot-seconds by activity of all slots of one class and one row of the price table."""

    slot_class: SlotClass
    price: str
    stands_in: bool = False
    """True for nodes that were rented in place of spot nodes."""
    seconds: dict[Activity, float] = {}

    def add(self, activity: Activity, seconds: float) -> None:
        self.seconds[activity] = self.seconds.get(activity, 0.0) + seconds

    @property
    def line(self) -> tuple[str, str, bool]:
        """Key of the line on the bill."""
        return self.slot_class.value, self.price, self.stands_in

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


class Account(SlotSeconds, kw_only=True):
    """Slot-seconds of the slots of one tenure."""

    tenure: Tenure

    def copy(self) -> "Account":
        return msgspec.structs.replace(self, seconds=dict(self.seconds))


Accounts: TypeAlias = dict[str, Account]
"""Accounts by name."""


class Period(msgspec.Struct, kw_only=True):
    """Time from the end of the previous iteration to the end of this one."""

    iteration: int
    start: float
    end: float | None = None
    """None until the iteration is done."""
    accounts: Accounts = {}


class CostMeter(msgspec.Struct, kw_only=True):
    """A fold of all records; readable at any instant."""

    slots: Occupancy = msgspec.field(default_factory=Occupancy)
    closed: Accounts = {}
    """Accounted seconds of the run."""
    passed: list[Period] = msgspec.field(default_factory=lambda: [Period(iteration=0, start=0.0)])
    """Accounted seconds by iteration."""
    ends: list[float] = []
    """End times of all periods but the last."""
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
        """Return a meter that has read these records."""
        meter = cls()
        for record in records:
            meter.apply(record)
        return meter

    def accounts(self, at: float | None = None) -> list[Account]:
        """Slot-seconds up to `at` (default: the last record), including open slots."""
        accounts = {name: account.copy() for name, account in self.closed.items()}
        for slot, activity, start, end in self.slots.unreported(self._until(at)):
            _account(accounts, slot.account, slot).add(activity, end - start)
        return self._settled(accounts)

    def tallies(self, at: float | None = None) -> list[SlotSeconds]:
        """Slot-seconds up to `at`, by line of the bill."""
        tallies: dict[tuple[str, str, bool], SlotSeconds] = {}
        for account in self.accounts(at):
            empty = SlotSeconds(slot_class=account.slot_class, price=account.price, stands_in=account.stands_in)
            tally = tallies.setdefault(account.line, empty)
            for activity, seconds in account.seconds.items():
                tally.add(activity, seconds)
        return [tallies[line] for line in sorted(tallies)]

    def periods(self, at: float | None = None, newest: int | None = None) -> list[tuple[Period, list[Account]]]:
        """Accounts by iteration, the current one last; without iterations in which no slot was held.

        `newest` is the number of periods that are wanted; default all.
        """
        first = 0 if newest is None else max(0, len(self.passed) - newest)
        wanted = self.passed[first:]
        parted = [{name: account.copy() for name, account in period.accounts.items()} for period in wanted]
        for slot, activity, start, end in self.slots.unreported(self._until(at)):
            for number, seconds in self._parts(start, end):
                if number >= first:
                    _account(parted[number - first], slot.account, slot).add(activity, seconds)
        pairs = zip(wanted, parted, strict=True)
        return [(period, self._settled(accounts)) for period, accounts in pairs if accounts]

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
        """Split an interval at the ends of periods: (period number, seconds)."""
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
