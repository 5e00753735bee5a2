"""When requests will be finished, from measured speeds; what takes time after the last step is not counted.

A held request takes its remaining steps at the pace of its holder's batch, from when its step was last told. One that
waits begins in the first row that comes free and takes all its steps there; rows of who does not hold its weights yet
are free when it does.
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heapreplace
from math import fsum, inf
from typing import TypeAlias

from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.control.scheduler.state import PREVIEW_RANK, Backlog, Standing, Ticket, WorkerRecord
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId

Fetching: TypeAlias = Callable[[WorkerId, WeightsId], float]
"""Seconds until a worker holds these weights."""


def seconds_until(
    groups: Iterable[Sequence[Ticket]],
    count: int,
    team: Iterable[WorkerRecord],
    settings: SchedulerSettings,
    now: float,
    fetching: Fetching,
) -> float:
    """Until `count` of the groups are finished; infinite unless these workers, of whom one was measured, do it."""
    rows = _Rows(_able(team), settings, now, fetching)
    finished_s = sorted(rows.finish_s(tickets) if rows.team else inf for tickets in groups)
    return finished_s[count - 1] if len(finished_s) >= count > 0 else inf


def seconds_of_exact_work(
    everybody: Iterable[WorkerRecord], backlogs: Iterable[Backlog], team: Iterable[WorkerRecord], fetching: Fetching
) -> float:
    """That the team takes for all that waits or is held, whoever holds it."""
    able = _able(team)
    held = sum(
        ticket.remaining
        for worker in everybody
        for ticket in worker.leases.values()
        if ticket.request.work.rank < PREVIEW_RANK
    )
    waiting = {backlog.weights: sum(queue.row_steps for queue in backlog.queues[:PREVIEW_RANK]) for backlog in backlogs}
    if not able:
        return inf
    # Nobody works on what waits before it holds the weights.
    lost = fsum(
        worker.speed
        * min((fetching(worker.id, weights) for weights, row_steps in waiting.items() if row_steps), default=0)
        for worker in able
    )
    return (held + sum(waiting.values()) + lost) / fsum(worker.speed for worker in able)


def _able(team: Iterable[WorkerRecord]) -> list[WorkerRecord]:
    """Those that can be relied on; nobody, if nothing is known of their speed."""
    able = [worker for worker in team if worker.standing is Standing.SERVING]
    return able if any(worker.measured for worker in able) else []


class _Rows:
    """The rows of a team, and when each is free for requests of some weights."""

    def __init__(
        self, team: Sequence[WorkerRecord], settings: SchedulerSettings, now: float, fetching: Fetching
    ) -> None:
        self.team = team
        self._settings = settings
        self._now = now
        self._fetching = fetching
        self._frees: dict[WeightsId, list[float]] = {}

    def finish_s(self, tickets: Sequence[Ticket]) -> float:
        held_s = [_left_s(ticket, self._settings, self._now) for ticket in tickets if ticket.holder is not None]
        waiting = [ticket for ticket in tickets if ticket.holder is None]
        return max([*held_s, self._begin_and_finish_s(waiting)])

    def _begin_and_finish_s(self, waiting: Sequence[Ticket]) -> float:
        if not waiting:
            return 0.0
        frees, last_s = list(self._free_s(waiting[0].backlog.weights)), 0.0
        batch = -(-sum(waiting[0].backlog.unfinished) // len(self.team))
        saturating = self._settings.saturating_rows
        step_s = min(worker.step_s(min(worker.rows, batch), saturating) for worker in self.team)
        # One after the other, the longest first: who comes free takes the next.
        heapify(frees)
        for ticket in sorted(waiting, key=lambda ticket: -ticket.remaining):
            heapreplace(frees, ended := frees[0] + ticket.remaining * step_s)
            last_s = max(last_s, ended)
        return last_s

    def _free_s(self, weights: WeightsId) -> list[float]:
        """Seconds until each row is free, the first one first."""
        if weights not in self._frees:
            self._frees[weights] = sorted(
                max(moment, self._fetching(worker.id, weights))
                for worker in self.team
                for moment in self._rows_free_s(worker)
            )
        return self._frees[weights]

    def _rows_free_s(self, worker: WorkerRecord) -> list[float]:
        held_s = [_left_s(ticket, self._settings, self._now) for ticket in worker.leases.values()]
        return [0.0] * (worker.rows - len(held_s)) + held_s


def _left_s(ticket: Ticket, settings: SchedulerSettings, now: float) -> float:
    holder = ticket.holder
    assert holder is not None
    # What is finished and still on its way is leased, but in no batch.
    step_s = holder.step_s(min(len(holder.leases), holder.rows), settings.saturating_rows)
    return max(0.0, ticket.remaining * step_s - (now - ticket.moved_at))
