"""Commits and grants on their way through an agent, whose flights are stored or read meanwhile.

    worker --Commit, HandBack--> the flight is stored --> controller
    controller --Grant--> its flights are read --> worker; what follows for that worker waits behind the grant

Invariants (tests/unit/test_agent_flights.py, storms): a commit leaves the node after its flight is stored, and a
worker's commits and hand-backs stay in order; so do all messages to a worker. On the run's own machine nothing waits.
"""

from functools import partial
from typing import Protocol

import msgspec

from spotlight.core import messages as m
from spotlight.core.blobs import BlobRef
from spotlight.core.errors import Stopped
from spotlight.core.types import WorkerId
from spotlight.node.in_order import InOrder, PendingItem
from spotlight.node.unloading import Fetched, FlightStore

Frame = tuple[m.AnyMessage, bytes]


class Ends(Protocol):
    """The two sides of the relay, and what happens to it."""

    def report_of(self, worker: WorkerId, message: m.AnyMessage) -> None:
        """Send a message of the worker to the controller."""

    def deliver(self, worker: WorkerId, frame: Frame) -> None:
        """Send a message to the worker, if it lives."""

    def cannot_store(self, error: Stopped) -> None:
        """A flight cannot be stored: its commit does not count."""

    def all_stored(self, worker: WorkerId) -> None:
        """No commit of the worker is pending any more."""


class _Nowhere:
    """The ends of a node that is gone."""

    def report_of(self, worker: WorkerId, message: m.AnyMessage) -> None:
        pass

    def deliver(self, worker: WorkerId, frame: Frame) -> None:
        pass

    def cannot_store(self, error: Stopped) -> None:
        pass

    def all_stored(self, worker: WorkerId) -> None:
        pass


class FlightRelay:
    """By worker: commits that wait for their flight to be stored, and messages behind a grant that is being read."""

    def __init__(self, store: FlightStore, ends: Ends) -> None:
        self._store = store
        self._ends = ends
        self._storing: dict[WorkerId, InOrder[m.AnyMessage]] = {}
        self._fetching: dict[WorkerId, InOrder[Frame]] = {}

    def is_storing(self, worker: WorkerId) -> bool:
        return worker in self._storing

    def gone(self, worker: WorkerId) -> None:
        """Nothing more is delivered to the worker."""
        self._fetching.pop(worker, None)

    def leave(self) -> None:
        """Do nothing more, and drop the references to the node, which is gone."""
        self._ends = _Nowhere()

    def commit(self, worker: WorkerId, message: m.Commit | m.HandBack, blob: bytes) -> None:
        """Report the message when its flight is stored, after the earlier ones of the worker."""
        queue = self._storing.get(worker)
        if queue is None:
            if not blob:
                self._ends.report_of(worker, message)
                return
            queue = self._storing[worker] = InOrder(partial(self._report, worker))
        if blob:
            self._store.append(blob, partial(self._stored, worker, queue.reserve(), message))
        else:
            queue.add(message)

    def grant(self, worker: WorkerId, grant: m.Grant) -> None:
        """Deliver the grant with its flights; a lease whose flight cannot be read has failed: it is made again."""
        if not self._store.needs_fetch(grant):
            self.to_worker(worker, (grant, b""))
            return
        queue = self._fetching.setdefault(worker, InOrder(partial(self._deliver, worker)))
        self._store.fetch(grant, partial(self._fetched, worker, queue.reserve(), grant))

    def to_worker(self, worker: WorkerId, frame: Frame) -> None:
        """Deliver a message after the grants before it."""
        queue = self._fetching.get(worker)
        if queue is None:
            self._ends.deliver(worker, frame)
        else:
            queue.add(frame)

    def _report(self, worker: WorkerId, message: m.AnyMessage) -> None:
        self._ends.report_of(worker, message)

    def _deliver(self, worker: WorkerId, frame: Frame) -> None:
        self._ends.deliver(worker, frame)

    def _stored(
        self,
        worker: WorkerId,
        place: PendingItem[m.AnyMessage],
        message: m.Commit | m.HandBack,
        stored: BlobRef | Stopped,
    ) -> None:
        queue = self._storing[worker]
        if isinstance(stored, BlobRef):
            queue.fill(place, msgspec.structs.replace(message, flight=stored))
        else:
            self._ends.cannot_store(stored)
            queue.fill(place, None)
        if queue.is_empty:
            del self._storing[worker]
            self._ends.all_stored(worker)

    def _fetched(self, worker: WorkerId, place: PendingItem[Frame], grant: m.Grant, fetched: Fetched) -> None:
        queue = self._fetching.get(worker)
        if queue is None:
            return
        for lease, problem in fetched.unread:
            failed = m.Failed(problem=problem, request=lease.request.id, attempt=lease.attempt)
            self._ends.report_of(worker, failed)
        lost = {lease.request.id for lease, _ in fetched.unread}
        leases = tuple(lease for lease in grant.leases if lease.request.id not in lost)
        queue.fill(place, (msgspec.structs.replace(grant, leases=leases), fetched.flights))
        if queue.is_empty:
            del self._fetching[worker]
