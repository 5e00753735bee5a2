"""A round of service: fair shares to all who ask, the fastest first; then what whole rows left over, a row each.

When little waits and many ask, as at the end of every iteration, nearly all are refused, and that again with every
request that comes back. So where a look at the queues shows that nobody who is left can have a share, they are not
asked one by one. Invariant: who gets what, and who is refused in which order, is as if they had been
(tests/unit/test_scheduler_rounds.py).
"""

from spotlight.control.scheduler import notices
from spotlight.control.scheduler.assignments import Assignment, assignments_of
from spotlight.control.scheduler.balance import Balance
from spotlight.control.scheduler.booking import Booking
from spotlight.control.scheduler.hunger import Hunger
from spotlight.control.scheduler.serving import next_queue
from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.control.scheduler.tickets import Ticket
from spotlight.control.scheduler.workers import Standing, Worker

MANY = 16
"""Who ask, before it is worth a look whether all of them would be refused."""
LEAVING = Standing.LEAVING


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
        round_: list[tuple[Worker, list[Ticket]]] = []
        rest: list[Worker] = []
        may_look = len(hunger.turns) > MANY
        while booking.waiting and (worker := hunger.pop()) is not None:
            taken = self._take_share(worker, now)
            round_.append((worker, taken))
            if may_look and not taken:
                may_look = False
                if self._balance.is_beyond_shares(booking.backlogs(), hunger.top_speed()):
                    rest = hunger.pop_all()
        for worker, taken in round_:
            if booking.waiting and worker.free_rows > 0:
                taken += self._take_rest(worker, now)
        reached = 0
        for worker in rest:
            if not booking.waiting:
                break
            round_.append((worker, self._take_rest(worker, now)))
            reached += 1
        assignments: list[Assignment] = []
        for worker, taken in round_:
            if not taken:
                self._refuse(worker, now)
                continue
            worker.free_rows = 0
            worker.refused = None
            given = assignments_of(worker, taken)
            worker.assignments += len(given)
            assignments += given
        for worker in rest[reached:]:
            self._refuse(worker, now)
        return assignments

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

    def _refuse(self, worker: Worker, now: float) -> None:
        if worker.standing is LEAVING and next_queue(worker, now, self._settings) is None:
            self._hunger.set_doomed(worker, notices.largest_that_fits(worker, now, self._settings))
        else:
            self._hunger.set_aside(worker)
