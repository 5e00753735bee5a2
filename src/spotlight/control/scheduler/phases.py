"""Rows of a slot that are begun one after the other instead of all at once.

A slot draws all its rows together, so those that begin together end together: with large batches nothing can be trained
for a long time, and then much. Begun in phases, a few rows at a time, the same batch finishes a few rows at a time, and
is as large as before once all phases are begun; at the end of an iteration it shrinks row by row.

Invariant: a slot that rolls out has at most one more phase of rollouts in flight than its foremost one has passed, and
is asked again whenever it tells of progress, so none is kept waiting for longer than that
(tests/unit/test_scheduler_phases.py).
"""

from spotlight.control.scheduler.backlog import Queue
from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.control.scheduler.workers import Worker
from spotlight.core.work import Work

NEAREST = 0.5
"""The whole number of phases that is nearest: progress between two words of a worker is only estimated."""
ROLLOUT = Work.ROLLOUT


def is_early(worker: Worker, queue: Queue, now: float, settings: SchedulerSettings) -> bool:
    """Whether the head of the queue should not begin yet; who helps while it waits to train begins all at once."""
    phases = settings.phases
    if phases == 1 or worker.helps or queue.head().request.work is not ROLLOUT:
        return False
    passed = int(phases * _foremost(worker, now, settings) + NEAREST)
    begun = worker.rows - worker.free_rows
    worker.paced = begun * phases >= worker.rows * (1 + passed)
    return worker.paced


def _foremost(worker: Worker, now: float, settings: SchedulerSettings) -> float:
    """Share of its steps that the rollout which is farthest has taken."""
    held = [ticket for ticket in worker.leases.values() if ticket.request.work is ROLLOUT]
    step_s = worker.step_s(min(len(held), worker.rows), settings.saturating_rows)
    return max([min(1.0, (each.reached + (now - each.moved_at) / step_s) / each.steps) for each in held], default=0.0)
