"""A round of service: fair shares to all workers that ask, the fastest first; then rows that are left over, one each.

Invariant: what a round gives is leased in the ledger, and each worker that asked is either served or set aside
(tests/unit/test_scheduler_rounds.py).
"""

from typing import TypeAlias

from spotlight.control.scheduler.assignments import Assignment, assignments_of
from spotlight.control.scheduler.balance import Balance
from spotlight.control.scheduler.booking import Booking
from spotlight.control.scheduler.hunger import Hunger
from spotlight.control.scheduler.serving import next_queue
from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.control.scheduler.tickets import Ticket
from spotlight.control.scheduler.workers import Worker

_Asked: TypeAlias = tuple[Worker, list[Ticket]]
"""A worker that asked, and what it is given."""


class Rounds:
    """Matches standing pulls with waiting requests."""

    def __init__(self, settings: SchedulerSettings, booking: Booking, balance: Balance, hunger: Hunger) -> None:
        self._settings = settings
        self._booking = booking
        self._balance = balance
        self._hunger = hunger

    def serve(self, now: float) -> list[Assignment]:
        """One round."""
        asked: list[_Asked] = []
        while self._booking.waiting and (worker := self._hunger.pop()) is not None:
            asked.append((worker, self._take_share(worker, now)))
        for worker, taken in asked:
            if not self._booking.waiting:
                break
            taken += self._take_rest(worker, now)
        return [assignment for worker, taken in asked for assignment in self._answer(worker, taken)]

    def _answer(self, worker: Worker, taken: list[Ticket]) -> list[Assignment]:
        if not taken:
            self._hunger.set_aside(worker)
            return []
        worker.free_rows = 0
        worker.refused = None
        assignments = assignments_of(worker, taken)
        worker.assignments += len(assignments)
        return assignments

    def _take_share(self, worker: Worker, now: float) -> list[Ticket]:
        taken: list[Ticket] = []
        while worker.free_rows > 0 and worker.room > 0:
            source = next_queue(worker, now, self._settings)
            if source is None or not self._balance.is_share(worker, *source):
                break
            taken.append(self._booking.lease(worker, source[1], now))
        return taken

    def _take_rest(self, worker: Worker, now: float) -> list[Ticket]:
        source = next_queue(worker, now, self._settings) if worker.free_rows > 0 and worker.room > 0 else None
        if source is None or not self._balance.is_rest(worker, *source, now):
            return []
        return [self._booking.lease(worker, source[1], now)]
