"""An agent's record of its workers' leases, from the messages it relays; the controller's ledger is authoritative.

Invariant (tests/unit/test_leases.py): the newest attempt granted to a worker stays until that attempt ends, so every
verdict finds its prompt, and layouts see which workers are busy.
"""

from collections import deque
from collections.abc import Mapping

from spotlight.core import messages as m
from spotlight.core.types import WorkerId
from spotlight.core.work import RequestId

ENDED_KEPT = 64
"""Ended attempts that are remembered per worker; a second message about one follows the first closely."""


class Leases:
    """Leases by worker, then by request."""

    def __init__(self) -> None:
        self._held: dict[WorkerId, dict[RequestId, m.Granted]] = {}
        self._ended: dict[WorkerId, deque[tuple[RequestId, int]]] = {}

    def of(self, worker: WorkerId) -> Mapping[RequestId, m.Granted]:
        return self._held.get(worker, {})

    def observe(self, worker: WorkerId, message: m.AnyMessage) -> None:
        """Record a message that the controller sends to the worker."""
        match message:
            case m.Grant():
                held = self._held.setdefault(worker, {})
                for lease in message.leases:
                    held[lease.request.id] = lease
            case m.Fenced():
                self.ended(worker, message.request, message.attempt)
            case m.Discard() if worker in self._held:
                leases = self._held[worker].items()
                kept = {id_: lease for id_, lease in leases if lease.request.work is not message.work}
                self._held[worker] = kept

    def ended(self, worker: WorkerId, request: RequestId, attempt: int) -> m.Granted | None:
        """Return the lease of this request, and remove it unless the worker holds a newer attempt."""
        held = self._held.get(worker)
        granted = held.get(request) if held is not None else None
        if held is not None and granted is not None and granted.attempt == attempt:
            del held[request]
            self._ended.setdefault(worker, deque(maxlen=ENDED_KEPT)).append((request, attempt))
        return granted

    def has_ended(self, worker: WorkerId, request: RequestId, attempt: int) -> bool:
        """Whether this attempt ended here, so that the controller knows its end or a report of it is on its way."""
        return (request, attempt) in self._ended.get(worker, ())

    def gone(self, worker: WorkerId) -> None:
        self._held.pop(worker, None)
        self._ended.pop(worker, None)
