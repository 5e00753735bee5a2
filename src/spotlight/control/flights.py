"""Flights: the newest committed state of each sample in the making. Volatile: a controller that restarts has none.

Invariant: of one sample only the newest is kept, and none of a sample that is finished or not wanted any more
(tests/unit/test_flights.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

from spotlight.core.work import RequestId


@dataclass(frozen=True)
class _Flight:
    step: int
    blob: bytes


class Flights:
    """Kept as bytes that only workers understand."""

    def __init__(self) -> None:
        self._flights: dict[RequestId, _Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def keep(self, request: RequestId, step: int, blob: bytes) -> None:
        """An older one that comes late changes nothing."""
        known = self._flights.get(request)
        if known is None or step > known.step:
            self._flights[request] = _Flight(step, blob)

    def at(self, request: RequestId, step: int) -> bytes | None:
        """The flight that goes on from this step."""
        known = self._flights.get(request)
        return known.blob if known is not None and known.step == step else None

    def forget(self, request: RequestId) -> None:
        self._flights.pop(request, None)

    def keep_only(self, is_wanted: Callable[[RequestId], bool]) -> None:
        self._flights = {request: flight for request, flight in self._flights.items() if is_wanted(request)}
