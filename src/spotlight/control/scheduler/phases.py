"""Rows of a slot that are begun one after the other instead of all at once.

A slot draws all its rows together, so those that begin together end together: with large batches nothing can be trained
for a long time, and then much. Begun in phases, a few rows at a time, the same batch finishes a few rows at a time, and
is as large as before once all phases are begun; at the end of an iteration it shrinks row by row.

Invariant: a slot has begun n + 1 phases of rollouts only when its foremost one has come to the middle of the n-th, and
is asked again whenever it tells of progress, so none is kept waiting for longer than that; other work in its rows keeps
no rollout waiting (tests/unit/test_scheduler_phases.py).
"""

from spotlight.control.scheduler.backlog import Queue
from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.control.scheduler.workers import Standing, Worker
from spotlight.core.work import Work

NEAREST = 0.5
"""Progress counts to the nearest whole phase: it is only estimated between two words of a worker, and rows that begin
late leave the batch small for as long."""
ROLLOUT = Work.ROLLOUT
SERVING = Standing.SERVING


def is_early(worker: Worker, queue: Queue, now: float, settings: SchedulerSettings) -> bool:
    """Whether the head of the queue should not begin yet; who helps or leaves has no time for phases."""
    phases = settings.phases
    if worker.helps or worker.standing is not SERVING or queue.head().request.work is not ROLLOUT:
        return False
    shares = _shares(worker, now, settings)
    # Rows of other work are no phase, and finished rollouts may wait for their reward in no row at all.
    begun = min(worker.rows - worker.free_rows, sum([share < 1 for share in shares]))
    passed = int(phases * max(shares, default=0.0) + NEAREST)
    return begun * phases >= worker.rows * (1 + passed)


def _shares(worker: Worker, now: float, settings: SchedulerSettings) -> list[float]:
    """Of its steps, that each rollout has taken."""
    held = [ticket for ticket in worker.leases.values() if ticket.request.work is ROLLOUT]
    step_s = worker.step_s(min(len(held), worker.rows), settings.saturating_rows)
    return [min(1.0, (each.reached + (now - each.moved_at) / step_s) / each.steps) for each in held]
