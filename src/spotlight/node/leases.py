"""What an agent knows of its workers' leases, from what it relays; the controller's ledger is what counts.

Invariant (tests/unit/test_leases.py): the newest attempt that was granted to a worker stays until that very attempt
ends; so a verdict finds its prompt, and a layout sees who is busy.
"""

from collections.abc import Mapping

from spotlight.core import messages as m
from spotlight.core.types import WorkerId
from spotlight.core.work import RequestId


class Leases:
    """By worker, then by request."""

    def __init__(self) -> None:
        self._held: dict[WorkerId, dict[RequestId, m.Granted]] = {}

    def of(self, worker: WorkerId) -> Mapping[RequestId, m.Granted]:
        return self._held.get(worker, {})

    def observe(self, worker: WorkerId, message: m.AnyMessage) -> None:
        """The controller's word, on its way to the worker."""
        match message:
            case m.Grant():
                granted = {lease.request.id: lease for lease in message.leases}
                self._held.setdefault(worker, {}).update(granted)
            case m.Fenced():
                self.ended(worker, message.request, message.attempt)
            case m.Discard() if worker in self._held:
                held = self._held[worker].items()
                self._held[worker] = {id_: lease for id_, lease in held if lease.request.work is not message.work}

    def ended(self, worker: WorkerId, request: RequestId, attempt: int) -> m.Granted | None:
        """What was granted; forgotten, unless the worker holds a newer attempt of it by now."""
        granted = self.of(worker).get(request)
        if granted is not None and granted.attempt == attempt:
            del self._held[worker][request]
        return granted

    def gone(self, worker: WorkerId) -> None:
        self._held.pop(worker, None)
