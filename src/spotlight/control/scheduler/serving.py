"""The order of service: which queue a worker is served from next.

Rollouts, then audits, evaluation, previews; a class is served only when nothing of a better one waits for any weights
that the worker holds, so previews never keep anybody waiting. Of two queues of one class, the one whose head is older.
"""

from spotlight.control.scheduler import notices
from spotlight.control.scheduler.backlog import PREVIEW_RANK, Backlog, Queue
from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.control.scheduler.workers import Standing, Worker
from spotlight.core.work import Work

LEAVING = Standing.LEAVING
ALL_RANKS = range(len(Work))
RANKS = {
    Standing.SERVING: ALL_RANKS,
    Standing.PREVIEWS_ONLY: (PREVIEW_RANK,),
    Standing.LEAVING: ALL_RANKS,
    Standing.DRAINING: (),
}


def next_queue(worker: Worker, now: float, settings: SchedulerSettings) -> tuple[Backlog, Queue] | None:
    """The queue that the worker's next request comes from; None: nothing waits that it may have."""
    for rank in RANKS[worker.standing]:
        found: tuple[Backlog, Queue] | None = None
        for backlog in worker.backlogs:
            queue = backlog.queues[rank]
            if queue.count and (found is None or queue.head().key < found[1].head().key):
                found = (backlog, queue)
        if found is not None:
            late = worker.standing is LEAVING and not notices.fits(worker, found[1].head().remaining, now, settings)
            return None if late else found
    return None
