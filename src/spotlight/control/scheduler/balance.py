"""Shares by measured speed, so that a fast and a slow worker finish together.

All workers that share a backlog would finish together after `level` seconds: waiting and held row-steps over the sum of
speeds. Workers that still fetch the weights have a share too, so that the first ones that hold them, or slow ones, do
not take the rows of the others. A worker receives rows that begin within the level and end within `JITTER` times it
(its fair share). A row that is left over goes to a worker that finishes it no later than the fastest would, starting at
the level. A slower worker is refused until that time, its `promise`. If the row still waits then (the faster worker is
stuck or does not pull), the slower worker receives it. While others still fetch, idle workers take such a row at once,
busy ones none.

Invariant: `load` and `team` of each backlog are the sums over the counted workers that share it; every change costs
O(log n) comparisons (tests/property/test_scheduler_property.py, benchmarks/scheduler/).
"""

from collections.abc import Sequence

from spotlight.control.scheduler.state import (
    UNMEASURED,
    Backlog,
    MeasuredSpeeds,
    Queue,
    Standing,
    WorkerRecord,
    usable,
)

SERVING = Standing.SERVING
ROUNDING = 1 + 1e-9
"""Tolerance for sums of speeds, which are not exact: a share within it is full."""

JITTER = 1.05
"""Speeds within 5 % count as equal: measured ones never are, and rounding down would leave a row to some other worker.
"""


class Balance:
    """Keeps loads and speeds per backlog, and decides which rows a worker may take."""

    def __init__(self) -> None:
        self._known = MeasuredSpeeds()
        self.slowest = UNMEASURED
        """Lowest speed of any worker so far."""

    # -- changes -------------------------------------------------------------------------------------------------------

    def measure(self, worker: WorkerRecord, reported: float | None) -> None:
        """Set the worker's speed: the reported one, else its last measured one, else the median of the others."""
        measured = usable(reported)
        if measured is None:
            speed = self._known.median if worker.measured is None else worker.measured
        else:
            speed = measured
            worker.measured = measured
            self._known.set(worker.id, measured)
        if speed != worker.speed:
            self._leave(worker)
            worker.speed = speed
            self.slowest = min(self.slowest, speed)
            self.recount(worker)

    def hold(self, worker: WorkerRecord, backlogs: Sequence[Backlog], awaited: Sequence[Backlog] = ()) -> None:
        """Record that the worker holds exactly the weights of these backlogs, and fetches the awaited ones."""
        self._leave(worker)
        for backlog in worker.shared:
            backlog.holders -= 1
        worker.backlogs = tuple(backlogs)
        worker.shared = (*backlogs, *awaited)
        for backlog in worker.shared:
            backlog.holders += 1
        self.recount(worker)

    def recount(self, worker: WorkerRecord) -> None:
        """Count the worker in its backlogs' sums while it is serving and has a standing pull or leases."""
        counts = worker.standing is SERVING and (worker.free_rows > 0 or bool(worker.leases))
        if counts == worker.counted:
            return
        if not counts:
            self._leave(worker)
            return
        worker.counted = True
        for backlog in worker.shared:
            backlog.team.add(worker.id, worker.speed)
            backlog.load += worker.load
        for backlog in worker.shared[len(worker.backlogs) :]:
            backlog.awaited += 1

    def shift(self, worker: WorkerRecord, row_steps: int) -> None:
        """Add row-steps to the worker's load."""
        worker.load += row_steps
        if worker.counted:
            for backlog in worker.shared:
                backlog.load += row_steps

    def remove(self, worker: WorkerRecord) -> None:
        """Remove a lost worker from all sums."""
        self.hold(worker, ())
        self._leave(worker)
        self._known.forget(worker.id)

    # -- decisions -----------------------------------------------------------------------------------------------------

    def is_share(self, worker: WorkerRecord, backlog: Backlog, queue: Queue) -> bool:
        """Whether the head of the queue is within the worker's fair share: it begins there, and hardly exceeds it."""
        if backlog.awaited and self._is_free(worker, backlog):
            return True
        begins_s, level_s = worker.finish_s(0), backlog.level_s(queue.row_steps)
        if begins_s * ROUNDING >= level_s:
            return False
        return begins_s + queue.head().remaining / worker.speed <= level_s * JITTER

    def is_rest(self, worker: WorkerRecord, backlog: Backlog, queue: Queue, now: float) -> bool:
        """Whether the worker should take one row beyond its share: no other worker would finish it sooner."""
        if not backlog.team:
            return True
        if backlog.awaited:
            return not worker.leases
        head = queue.head()
        # A row needs all its steps, and a step of few rows takes as long as one of `saturating_rows`.
        few = worker.saturating_rows if self._costs_no_time(worker) else 1
        row_steps = head.remaining * few
        others_s = backlog.level_s(queue.row_steps) + row_steps / backlog.team.fastest
        own_s = max(worker.finish_s(head.remaining), worker.late_s + row_steps / worker.speed)
        if own_s <= others_s * ROUNDING:
            return True
        if worker.refused is None or not worker.refused.is_queued:
            worker.refused, worker.promise = head, now + others_s
        return now >= worker.promise

    def _is_free(self, worker: WorkerRecord, backlog: Backlog) -> bool:
        """Whether one more row costs no time on a worker than which none is faster: it is left to no other one."""
        return self._costs_no_time(worker) and worker.speed * JITTER >= backlog.team.fastest

    def _costs_no_time(self, worker: WorkerRecord) -> bool:
        return worker.batch + 1 <= worker.saturating_rows

    # -- inside --------------------------------------------------------------------------------------------------------

    def _leave(self, worker: WorkerRecord) -> None:
        if not worker.counted:
            return
        worker.counted = False
        for backlog in worker.shared:
            backlog.team.remove(worker.id)
            backlog.load -= worker.load
        for backlog in worker.shared[len(worker.backlogs) :]:
            backlog.awaited -= 1
