"""Preemption notices: a worker finishes what fits before the deadline and hands back the rest.

Invariants (tests/property/test_scheduler_property.py): a leaving worker never receives a request that it cannot finish,
with all it holds, before its deadline; a worker whose notice is withdrawn is used as if there had been none.
"""

from math import inf

from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.control.scheduler.state import Standing, Ticket, WorkerRecord
from spotlight.core.work import NoticeKind

SERVING = Standing.SERVING
STANDINGS = {NoticeKind.ADVISORY: Standing.PREVIEWS_ONLY, NoticeKind.IMMINENT: Standing.LEAVING, None: Standing.SERVING}


def warn(worker: WorkerRecord, kind: NoticeKind | None, deadline: float = inf) -> None:
    """Replace the worker's notice, by none for None; an advisory one sets no deadline, and a drain is never undone."""
    if worker.standing is not Standing.DRAINING:
        worker.standing = STANDINGS[kind]
    worker.deadline = deadline if kind is NoticeKind.IMMINENT else inf


def fits(worker: WorkerRecord, remaining: int, now: float, settings: SchedulerSettings) -> bool:
    """Whether the worker would finish one more request, and all it holds, before its deadline."""
    longest = max([remaining, *(ticket.remaining for ticket in worker.leases.values())])
    total = max(worker.load + remaining, longest * worker.saturating_rows)
    return total <= _row_steps_left(worker, now, settings)


def too_late(worker: WorkerRecord, now: float, settings: SchedulerSettings) -> list[Ticket]:
    """Tickets that the worker cannot finish before its deadline if it finishes the shortest first."""
    if worker.standing is SERVING:
        return []
    if worker.standing is Standing.DRAINING:
        return sorted(worker.leases.values(), key=lambda ticket: ticket.place)
    if worker.standing is not Standing.LEAVING:
        return []
    left = _row_steps_left(worker, now, settings)
    total = 0
    late: list[Ticket] = []
    for ticket in sorted(worker.leases.values(), key=lambda ticket: (ticket.remaining, ticket.place)):
        total += ticket.remaining
        if max(total, ticket.remaining * worker.saturating_rows) > left:
            late.append(ticket)
    return late


def _row_steps_left(worker: WorkerRecord, now: float, settings: SchedulerSettings) -> float:
    """Row-steps that the worker can do before its deadline."""
    return (worker.deadline - now - settings.commit_s) / (1 + settings.deadline_margin) * worker.speed
