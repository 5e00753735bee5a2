"""Flights: the newest committed state of each unfinished sample. A restarted controller has those that `recovery.py`
finds in the store.

The recorded window tensors of a sample do not change afterwards, so each commit holds only the new part: a flight is
one or more parts, and a part names the step of the part that it builds on (`since`, 0 for none).

    commit 2 (since 0)  commit 4 (since 2)  commit 6 (since 4)  commit 8 (since 4)     kept: 2, 4, 8

Invariant: the kept parts of a sample always form one complete flight, the newest possible one, whatever is lost,
duplicated or late; no part is kept of a sample that is finished or dropped (tests/unit/test_flights.py).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from spotlight.control.recovery import RecoveredFlight
from spotlight.core.blobs import BlobRef
from spotlight.core.work import RequestId


class _FlightPart(NamedTuple):
    step: int
    ref: BlobRef


class Flights:
    """Flights by request, as references to bytes that only workers decode. `release` gets those no longer needed."""

    def __init__(self, release: Callable[[Sequence[BlobRef]], None]) -> None:
        self._flights: dict[RequestId, tuple[_FlightPart, ...]] = {}
        self._release = release
        self.recovered: dict[RequestId, str] = {}
        """Weights digests of flights that an earlier life of the controller left."""

    def __len__(self) -> int:
        return len(self._flights)

    def recover(self, request: RequestId, flight: RecoveredFlight) -> int:
        """Keep a flight of an earlier life of the controller; return its step."""
        self._flights[request] = tuple([_FlightPart(part.step, part.ref) for part in flight])
        self.recovered[request] = flight[-1].weights_digest
        return flight[-1].step

    def fits(self, request: RequestId, since: int) -> bool:
        """True if a part that builds on step `since` can be kept: the part of that step has arrived."""
        if not since:
            return True
        known = self._flights.get(request, ())
        # A part usually builds on the newest one.
        return bool(known) and (known[-1].step == since or any(part.step == since for part in known))

    def keep(self, request: RequestId, step: int, ref: BlobRef, since: int = 0) -> None:
        """Keep a part that fits; a late, older part has no effect."""
        known = self._flights.get(request, ())
        if known and step <= known[-1].step:
            self.refuse(request, step, ref)
            return
        base = known if not known or known[-1].step <= since else tuple(part for part in known if part.step <= since)
        self._flights[request] = (*base, _FlightPart(step, ref))
        if len(base) < len(known):
            self._release([part.ref for part in known[len(base) :]])

    def refuse(self, request: RequestId, step: int, ref: BlobRef | None) -> None:
        """Release the bytes of a part that comes too late, unless they are part of the flight."""
        # By place: what a reference says beside it may differ after a restart.
        known = [(part.ref.path, part.ref.offset) for part in self._flights.get(request, ())]
        if ref is not None and (ref.path, ref.offset) not in known:
            self._release([ref])

    def at(self, request: RequestId, step: int) -> tuple[BlobRef, ...]:
        """The parts of the complete flight at this step; empty if there is none."""
        known = self._flights.get(request)
        return tuple([part.ref for part in known]) if known and known[-1].step == step else ()

    def newest(self, request: RequestId) -> tuple[int, tuple[BlobRef, ...]]:
        """Step and parts of the flight; 0 and none if there is none."""
        known = self._flights.get(request, ())
        return known[-1].step if known else 0, tuple([part.ref for part in known])

    def parts_by_file(self) -> Mapping[str, int]:
        """Number of parts that flights need, by the file that they lie in."""
        return Counter(part.ref.path for parts in self._flights.values() for part in parts)

    def forget(self, request: RequestId) -> None:
        if (parts := self._flights.pop(request, None)) is not None:
            self._release([part.ref for part in parts])
            if self.recovered:
                self.recovered.pop(request, None)

    def keep_only(self, is_wanted: Callable[[RequestId], bool]) -> None:
        for request in [request for request in self._flights if not is_wanted(request)]:
            self.forget(request)
