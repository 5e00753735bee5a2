"""Flights: the newest committed state of each unfinished sample. Volatile: a restarted controller has none.

The recorded window tensors of a sample do not change afterwards, so each commit holds only the new part: a flight is
one or more parts, and a part names the step of the part that it builds on (`since`, 0 for none).

    commit 2 (since 0)  commit 4 (since 2)  commit 6 (since 4)  commit 8 (since 4)     kept: 2, 4, 8

Invariant: the kept parts of a sample always form one complete flight, the newest possible one, whatever is lost,
duplicated or late; no part is kept of a sample that is finished or dropped (tests/unit/test_flights.py).
"""

from collections.abc import Callable
from typing import NamedTuple

from spotlight.core.work import RequestId


class _FlightPart(NamedTuple):
    step: int
    blob: bytes


class Flights:
    """Flights by request, as bytes that only workers decode."""

    def __init__(self) -> None:
        self._flights: dict[RequestId, tuple[_FlightPart, ...]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def fits(self, request: RequestId, since: int) -> bool:
        """True if a part that builds on step `since` can be kept: the part of that step has arrived."""
        if not since:
            return True
        known = self._flights.get(request, ())
        # A part usually builds on the newest one.
        return bool(known) and (known[-1].step == since or any(part.step == since for part in known))

    def keep(self, request: RequestId, step: int, blob: bytes, since: int = 0) -> None:
        """Keep a part that fits; a late, older part has no effect."""
        known = self._flights.get(request, ())
        if not known or step > known[-1].step:
            base = known if not known or known[-1].step <= since else [part for part in known if part.step <= since]
            self._flights[request] = (*base, _FlightPart(step, blob))

    def at(self, request: RequestId, step: int) -> bytes | None:
        """The complete flight at this step, as its concatenated parts; None if there is none."""
        known = self._flights.get(request)
        return b"".join([part.blob for part in known]) if known and known[-1].step == step else None

    def forget(self, request: RequestId) -> None:
        self._flights.pop(request, None)

    def keep_only(self, is_wanted: Callable[[RequestId], bool]) -> None:
        self._flights = {request: parts for request, parts in self._flights.items() if is_wanted(request)}
