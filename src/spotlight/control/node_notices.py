"""The preemption notices of nodes, passed to the scheduler for each of their workers.

A notice holds for the whole node until it is replaced or withdrawn, also for a worker that joins under it.
"""

from collections.abc import Callable
from math import inf

from spotlight.control.directory import Directory
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.core import messages as m
from spotlight.core.events import AnyEvent, NoticeGiven, NoticeWithdrawn
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind


class NodeNotices:
    """Holds the notice in force of each node; records every change."""

    def __init__(self, directory: Directory, scheduler: Scheduler, emit: Callable[[AnyEvent], None]) -> None:
        self._directory = directory
        self._scheduler = scheduler
        self._emit = emit
        self._in_force: dict[NodeId, tuple[NoticeKind, float]] = {}
        """Kind and deadline on this machine's clock; infinite if none was announced."""

    def warned(self, node: NodeId, warned: m.Warned, now: float) -> list[WorkerId]:
        """Apply the node's new notice; return its workers, whose samples may have to come back."""
        workers = self._directory.workers_of(node)
        if warned.withdrawn:
            self._in_force.pop(node, None)
        else:
            self._in_force[node] = (warned.kind, inf if warned.seconds is None else now + warned.seconds)
        for worker in workers:
            if warned.withdrawn:
                self._emit(NoticeWithdrawn(worker=worker))
                self._directory.workers[worker].warned = False
                self._scheduler.warn(worker, None, inf, now)
            else:
                self.joined(worker, now)
        return workers

    def joined(self, worker: WorkerId, now: float) -> None:
        """Apply the notice in force, if any, to a worker."""
        known = self._directory.workers[worker]
        if known.node not in self._in_force:
            return
        kind, deadline = self._in_force[known.node]
        known.warned = kind is NoticeKind.IMMINENT
        self._emit(NoticeGiven(worker=worker, kind=kind, seconds=None if deadline == inf else max(0.0, deadline - now)))
        self._scheduler.warn(worker, kind, deadline, now)

    def node_lost(self, node: NodeId) -> None:
        self._in_force.pop(node, None)
