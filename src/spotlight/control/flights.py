"""Flights: the newest committed state of each sample in the making. Volatile: a controller that restarts has none.

What a sample records in its window does not change afterwards, so each commit brings only what is new: a flight is one
or more parts, and a part says which earlier one it builds on (`since`, 0 for none).

    commit 2 (since 0)  commit 4 (since 2)  commit 6 (since 4)  commit 8 (since 4)     kept: 2, 4, 8

Invariant: what is kept of a sample is always one whole flight, the newest that can be put together, whatever is lost,
doubled or late; and nothing is kept of a sample that is finished or not wanted any more (tests/unit/test_flights.py).
"""

from collections.abc import Callable
from typing import NamedTuple

from spotlight.core.work import RequestId


class _FlightPart(NamedTuple):
    step: int
    blob: bytes


class Flights:
    """Kept as bytes that only workers understand."""

    def __init__(self) -> None:
        self._flights: dict[RequestId, tuple[_FlightPart, ...]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def fits(self, request: RequestId, since: int) -> bool:
        """Whether a part that builds on this step can be kept: the one of that step arrived."""
        if not since:
            return True
        known = self._flights.get(request, ())
        # Nearly always it builds on the newest.
        return bool(known) and (known[-1].step == since or any(part.step == since for part in known))

    def keep(self, request: RequestId, step: int, blob: bytes, since: int = 0) -> None:
        """A part that fits; an older one that comes late changes nothing."""
        known = self._flights.get(request, ())
        if not known or step > known[-1].step:
            base = known if not known or known[-1].step <= since else [part for part in known if part.step <= since]
            self._flights[request] = (*base, _FlightPart(step, blob))

    def at(self, request: RequestId, step: int) -> bytes | None:
        """The whole flight that goes on from this step: its parts, one after the other."""
        known = self._flights.get(request)
        return b"".join([part.blob for part in known]) if known and known[-1].step == step else None

    def forget(self, request: RequestId) -> None:
        self._flights.pop(request, None)

    def keep_only(self, is_wanted: Callable[[RequestId], bool]) -> None:
        self._flights = {request: parts for request, parts in self._flights.items() if is_wanted(request)}
