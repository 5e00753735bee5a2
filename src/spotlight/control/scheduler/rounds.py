"""A round of service: fair shares to all who ask, the fastest first; then what whole rows left over, a row each.

When little waits and many ask, as at the end of every iteration, nearly all are refused, and that again with every
request that comes back. So whoever has no time for anything that is first in line is not asked what it wants, and where
a look at the queues shows that nobody who is left can have a share, none of them is. Invariant: who gets what, and who
is refused in which order, is as if all had been asked one by one (tests/unit/test_scheduler_rounds.py).
"""

from collections.abc import Sequence
from math import inf
from typing import TypeAlias

from spotlight.control.scheduler import notices
from spotlight.control.scheduler.assignments import Assignment, assignments_of
from spotlight.control.scheduler.balance import CLEARLY, Balance
from spotlight.control.scheduler.booking import Booking
from spotlight.control.scheduler.hunger import Hunger
from spotlight.control.scheduler.serving import next_queue
from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.control.scheduler.tickets import Ticket
from spotlight.control.scheduler.workers import Standing, Worker

MANY = 16
"""Who ask, before it is worth a look whether all of them would be refused."""
LEAVING = Standing.LEAVING


_Turn: TypeAlias = tuple[Worker, float, list[Ticket]]
"""One that asks, the row-steps that it has time for, and what it was given."""


class Rounds:
    """Brings those who ask and what waits together."""

    def __init__(self, settings: SchedulerSettings, booking: Booking, balance: Balance, hunger: Hunger) -> None:
        self._settings = settings
        self._booking = booking
        self._balance = balance
        self._hunger = hunger

    def serve(self, now: float) -> list[Assignment]:
        """One round; what it gives is leased in the ledger."""
        booking, hunger = self._booking, self._hunger
        round_: list[_Turn] = []
        rest: list[tuple[Worker, float]] = []
        may_look = len(hunger.turns) > MANY
        while booking.waiting and (worker := hunger.pop()) is not None:
            most = self._most(worker, now)
            taken = self._take_share(worker, now) if self._has_time(most) else []
            round_.append((worker, most, taken))
            if may_look and not taken:
                may_look, rest = False, self._hopeless(now)
        for worker, most, taken in round_:
            if booking.waiting and worker.free_rows > 0 and self._has_time(most):
                taken += self._take_rest(worker, now)
        reached, longest = 0, max([most for _, most in rest], default=0.0)
        while reached < len(rest) and booking.waiting and self._has_time(longest):
            worker, most = rest[reached]
            reached += 1
            round_.append((worker, most, self._take_rest(worker, now) if self._has_time(most) else []))
        assignments = self._answer(round_, now)
        for worker, most in rest[reached:]:
            self._refuse(worker, most, now)
        return assignments

    def _hopeless(self, now: float) -> list[tuple[Worker, float]]:
        """All who still ask, with the row-steps that they have time for, if none of them can have a share."""
        asking = self._hunger.pop_all()
        found = [(worker, self._most(worker, now)) for _, _, worker in asking]
        if not self._has_time(max([most for _, most in found], default=0.0)):
            return found
        fastest = max([worker.speed for worker, _ in found])
        if self._balance.is_beyond_shares(self._booking.backlogs(), fastest):
            return found
        self._hunger.put_back(asking)
        return []

    def _answer(self, round_: Sequence[_Turn], now: float) -> list[Assignment]:
        assignments: list[Assignment] = []
        for worker, most, taken in round_:
            if not taken:
                self._refuse(worker, most, now)
                continue
            worker.free_rows = 0
            worker.refused = None
            given = assignments_of(worker, taken)
            worker.assignments += len(given)
            assignments += given
        return assignments

    def _most(self, worker: Worker, now: float) -> float:
        """Row-steps that the worker has time for; infinite but for those who leave."""
        return notices.largest_that_fits(worker, now, self._settings) if worker.standing is LEAVING else inf

    def _has_time(self, most: float) -> bool:
        """False: for nothing that is first in line anywhere, so that it need not be asked."""
        return most == inf or most * CLEARLY >= self._booking.shortest_head()

    def _take_share(self, worker: Worker, now: float) -> list[Ticket]:
        taken: list[Ticket] = []
        while worker.free_rows > 0 and worker.room > 0:
            source = next_queue(worker, now, self._settings)
            if source is None or not self._balance.is_share(worker, *source, now):
                break
            taken.append(self._booking.lease(worker, source[1], now))
        return taken

    def _take_rest(self, worker: Worker, now: float) -> list[Ticket]:
        source = next_queue(worker, now, self._settings) if worker.room > 0 else None
        if source is None or not self._balance.is_rest(worker, *source, now):
            return []
        return [self._booking.lease(worker, source[1], now)]

    def _refuse(self, worker: Worker, most: float, now: float) -> None:
        if not self._has_time(most) or (worker.standing is LEAVING and next_queue(worker, now, self._settings) is None):
            self._hunger.set_doomed(worker, most)
        else:
            self._hunger.set_aside(worker)
