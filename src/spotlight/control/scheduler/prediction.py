"""When requests will be finished, from measured speeds; what takes time after the last step is not counted.

A held request takes its remaining steps at the pace of its holder's batch, from when its step was last told. One that
waits begins in the first row that comes free and takes all its steps there; who does not hold its weights yet is taken
to be loading them.
"""

from collections.abc import Iterable, Sequence
from math import inf

from spotlight.control.scheduler.backlog import PREVIEW_RANK, Backlog
from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.control.scheduler.tickets import Ticket
from spotlight.control.scheduler.workers import Standing, Worker


def seconds_until(
    groups: Iterable[Sequence[Ticket]], count: int, team: Iterable[Worker], settings: SchedulerSettings, now: float
) -> float:
    """Until `count` of the groups are finished; infinite unless these workers, of whom one was measured, do it."""
    able = _able(team)
    if not able:
        return inf
    frees = sorted(moment for worker in able for moment in _rows_free_s(worker, settings, now))
    finished_s = sorted(_finish_s(tickets, able, frees, settings, now) for tickets in groups)
    return finished_s[count - 1] if len(finished_s) >= count > 0 else inf


def seconds_of_exact_work(everybody: Iterable[Worker], backlogs: Iterable[Backlog], team: Iterable[Worker]) -> float:
    """That the team takes for all that waits or is held, whoever holds it."""
    able = _able(team)
    held = sum(
        ticket.remaining
        for worker in everybody
        for ticket in worker.leases.values()
        if ticket.request.work.rank < PREVIEW_RANK
    )
    waiting = sum(queue.row_steps for backlog in backlogs for queue in backlog.queues[:PREVIEW_RANK])
    return (held + waiting) / sum(worker.speed for worker in able) if able else inf


def _able(team: Iterable[Worker]) -> list[Worker]:
    """Those that can be relied on; nobody, if nothing is known of their speed."""
    able = [worker for worker in team if worker.standing is Standing.SERVING]
    return able if any(worker.measured for worker in able) else []


def _finish_s(
    tickets: Sequence[Ticket], team: Sequence[Worker], frees: Sequence[float], settings: SchedulerSettings, now: float
) -> float:
    held_s = [_left_s(ticket, settings, now) for ticket in tickets if ticket.holder is not None]
    waiting = [ticket for ticket in tickets if ticket.holder is None]
    return max([*held_s, _begin_and_finish_s(waiting, team, frees, settings)])


def _begin_and_finish_s(
    waiting: Sequence[Ticket], team: Sequence[Worker], frees: Sequence[float], settings: SchedulerSettings
) -> float:
    if not waiting:
        return 0.0
    if not frees:
        return inf
    batch = -(-sum(waiting[0].backlog.unfinished) // len(team))
    step_s = min(worker.step_s(min(worker.rows, batch), settings.saturating_rows) for worker in team)
    return frees[min(len(waiting), len(frees)) - 1] + max(ticket.remaining for ticket in waiting) * step_s


def _rows_free_s(worker: Worker, settings: SchedulerSettings, now: float) -> list[float]:
    """Seconds until each of its rows is free."""
    held_s = [_left_s(ticket, settings, now) for ticket in worker.leases.values()]
    return [0.0] * (worker.rows - len(held_s)) + held_s


def _left_s(ticket: Ticket, settings: SchedulerSettings, now: float) -> float:
    holder = ticket.holder
    assert holder is not None
    # What is finished and still on its way is leased, but in no batch.
    step_s = holder.step_s(min(len(holder.leases), holder.rows), settings.saturating_rows)
    return max(0.0, ticket.remaining * step_s - (now - ticket.moved_at))
