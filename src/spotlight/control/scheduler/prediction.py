"""Predicted finish times of requests, from measured speeds; time after the last step is not counted.

A held request takes its remaining steps at the pace of its holder's batch, from its last reported step. A waiting
request begins in the first free row and takes all its steps there, at the pace of the fastest worker
(docs/decisions/techniques.md). Rows of a worker without its weights are free once the worker has fetched them.
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heapreplace
from math import fsum, inf
from typing import TypeAlias

from spotlight.control.scheduler.state import PREVIEW_RANK, Backlog, Standing, Ticket, WorkerRecord
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId

Fetching: TypeAlias = Callable[[WorkerId, WeightsId], float]
"""Seconds until a worker holds these weights."""


def seconds_until(
    groups: Iterable[Sequence[Ticket]],
    count: int,
    team: Iterable[WorkerRecord],
    now: float,
    fetching: Fetching,
) -> float:
    """Seconds until `count` of the groups are finished; infinite without a serving team with a measured speed."""
    rows = _Rows(_able(team), now, fetching)
    finished_s = sorted(rows.finish_s(tickets) if rows.team else inf for tickets in groups)
    return finished_s[count - 1] if len(finished_s) >= count > 0 else inf


def seconds_of_exact_work(
    workers: Iterable[WorkerRecord], backlogs: Iterable[Backlog], team: Iterable[WorkerRecord], fetching: Fetching
) -> float:
    """Seconds that the team takes for all waiting and held requests but previews, whichever worker holds them."""
    able = _able(team)
    held = sum(
        ticket.remaining
        for worker in workers
        for ticket in worker.leases.values()
        if ticket.request.work.rank < PREVIEW_RANK
    )
    waiting = {backlog.weights: sum(queue.row_steps for queue in backlog.queues[:PREVIEW_RANK]) for backlog in backlogs}
    if not able:
        return inf
    # A worker does no waiting work before it holds the weights.
    lost = fsum(
        worker.speed
        * min((fetching(worker.id, weights) for weights, row_steps in waiting.items() if row_steps), default=0)
        for worker in able
    )
    return (held + sum(waiting.values()) + lost) / fsum(worker.speed for worker in able)


def _able(team: Iterable[WorkerRecord]) -> list[WorkerRecord]:
    """Serving workers of the team; empty if none of them has a measured speed."""
    able = [worker for worker in team if worker.standing is Standing.SERVING]
    return able if any(worker.measured for worker in able) else []


class _Rows:
    """The rows of a team, and when each is free for requests of some weights."""

    def __init__(self, team: Sequence[WorkerRecord], now: float, fetching: Fetching) -> None:
        self.team = team
        self._now = now
        self._fetching = fetching
        self._frees: dict[WeightsId, list[float]] = {}

    def finish_s(self, tickets: Sequence[Ticket]) -> float:
        held_s = [_left_s(ticket, self._now) for ticket in tickets if ticket.holder is not None]
        waiting = [ticket for ticket in tickets if ticket.holder is None]
        return max([*held_s, self._begin_and_finish_s(waiting)])

    def _begin_and_finish_s(self, waiting: Sequence[Ticket]) -> float:
        if not waiting:
            return 0.0
        frees, last_s = list(self._free_s(waiting[0].backlog.weights)), 0.0
        batch = -(-sum(waiting[0].backlog.unfinished) // len(self.team))
        step_s = min(worker.step_s(min(worker.rows, batch)) for worker in self.team)
        # One after the other, the longest first: the next row that is free takes the next request.
        heapify(frees)
        for ticket in sorted(waiting, key=lambda ticket: -ticket.remaining):
            heapreplace(frees, ended := frees[0] + ticket.remaining * step_s)
            last_s = max(last_s, ended)
        return last_s

    def _free_s(self, weights: WeightsId) -> list[float]:
        """Seconds until each row is free, in ascending order."""
        if weights not in self._frees:
            self._frees[weights] = sorted(
                max(free_s, self._fetching(worker.id, weights))
                for worker in self.team
                for free_s in self._rows_free_s(worker)
            )
        return self._frees[weights]

    def _rows_free_s(self, worker: WorkerRecord) -> list[float]:
        held_s = [_left_s(ticket, self._now) for ticket in worker.leases.values()]
        return [0.0] * (worker.rows - len(held_s)) + held_s


def _left_s(ticket: Ticket, now: float) -> float:
    holder = ticket.holder
    assert holder is not None
    # A finished request whose result is in transit is leased, but in no batch.
    step_s = holder.step_s(min(len(holder.leases), holder.rows))
    return max(0.0, ticket.remaining * step_s - (now - ticket.moved_at))
