"""Smaller batches towards the end of the rollouts, so that the last ones do not end all at once.

A slot that fills all its rows as long as anything waits draws a large batch to the very end. Those batches end together
and late: until then there is little to train, and then much, while nobody has anything to draw. So a slot begins a row
only as long as it would not hold more than it could have if all that is unfinished were drawn in some rounds, in even
shares. Rows below saturation make no step longer, and are begun in any case.

Invariant: who draws nothing is never kept from a rollout, and other work in its rows keeps none waiting
(tests/unit/test_scheduler_taper.py).
"""

from spotlight.control.scheduler.backlog import Backlog, Queue
from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.control.scheduler.workers import Standing, Worker
from spotlight.core.work import Work

ROLLOUT = Work.ROLLOUT
SERVING = Standing.SERVING


def is_full(worker: Worker, backlog: Backlog, queue: Queue, settings: SchedulerSettings) -> bool:
    """Whether the worker draws as much as it should for now; who helps or leaves has no later rounds."""
    if worker.helps or worker.standing is not SERVING or queue.head().request.work is not ROLLOUT:
        return False
    held = sum([ticket.request.work is ROLLOUT for ticket in worker.leases.values()])
    # Finished rollouts may wait for their reward in no row at all.
    begun = min(worker.rows - worker.free_rows, held)
    shares = settings.last_rounds * max(len(backlog.team), 1)
    return begun >= max(settings.saturating_rows, -(-backlog.unfinished[ROLLOUT.rank] // shares))
