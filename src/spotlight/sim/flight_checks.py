"""Invariants of flights over the lives of a controller: what was committed is continued, and nothing else.

The limits are taken from the records alone, and the bytes are read from the storage, so that neither the ledger nor
`control/recovery.py` decides about itself.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from spotlight.control.flights import Flights
from spotlight.core.blobs import BlobRef
from spotlight.core.events import Accepted, AnyEvent, Leased, Released
from spotlight.core.work import RequestId
from spotlight.sim.fakes import FlightPart, read_flight
from spotlight.sim.storage import SimStorage


class _Limit(NamedTuple):
    """What the records allow a sample to continue from."""

    attempt: int | None
    """The live attempt."""
    step: int
    """Step at which it began, or at which the next one begins."""


class _LeftFlight(NamedTuple):
    """The flight of a sample at the end of a controller's life."""

    step: int
    files: tuple[str, ...]


class FlightChecks:
    """One per run: `ended` and `resumed` for every life of the controller, `observe` for every record."""

    def __init__(self, storage: SimStorage) -> None:
        self._storage = storage
        self._limits: dict[RequestId, _Limit] = {}
        self._left: dict[RequestId, _LeftFlight] = {}
        self._left_limits: dict[RequestId, _Limit] = {}

    def observe(self, event: AnyEvent) -> None:
        match event:
            case Leased(request=request, attempt=attempt, step=step):
                self._limits[request] = _Limit(attempt, step)
            case Released(request=request, step=step):
                self._limits[request] = _Limit(None, step)
            case Accepted(request=request):
                self._limits[request] = _Limit(None, 0)
            case _:
                pass

    def ended(self, flights: Flights, outstanding: Collection[RequestId]) -> None:
        """This life is over: its flights are what the next one may continue."""
        self._left.clear()
        self._left_limits = dict(self._limits)
        for request in outstanding:
            step, refs = flights.newest(request)
            limit = self._limits.get(request)
            if limit is not None and step:
                promised = step if limit.attempt is not None else min(step, limit.step)
                self._left[request] = _LeftFlight(promised, tuple(ref.path for ref in refs))

    def resumed(
        self, flights: Flights, outstanding: Mapping[RequestId, str | None], damaged: Collection[str]
    ) -> Iterator[str]:
        """Problems after the start of the next life; `outstanding` has the digest of each sample's weights."""
        needed: set[str] = set()
        for request, digest in outstanding.items():
            step, refs = flights.newest(request)
            needed.update(ref.path for ref in refs)
            if step:
                yield from self._problems(request, step, refs, digest)
            left = self._left.get(request)
            if left is not None and step < left.step and not any(path in damaged for path in left.files):
                made_with = {part.digest for path in left.files for part in self._read(path)}
                if made_with in (set(), {digest}):
                    yield f"{request} was committed at step {left.step} and continues at step {step} after a restart"
        unneeded = [path for path in self._storage.flight_files() if path not in needed]
        if unneeded:
            yield f"{unneeded[0]} is kept, but no sample continues from it"

    def _problems(self, request: RequestId, step: int, refs: tuple[BlobRef, ...], digest: str | None) -> Iterator[str]:
        parts = [part for ref in refs for part in self._read(ref.path)]
        limit = self._left_limits.get(request, _Limit(None, 0))
        if [part.request for part in parts] != [request] * len(refs) or parts[-1].step != step:
            yield f"{request} continues from step {step} of another flight: {parts}"
        elif parts[-1].attempt != limit.attempt and step > limit.step:
            yield f"{request} continues at step {step} of attempt {parts[-1].attempt}, but may from {limit}"
        elif digest is not None and parts[-1].digest != digest:
            yield f"{request} continues a flight made with {parts[-1].digest}, but {digest} is published"

    def _read(self, path: str) -> list[FlightPart]:
        """The part in a file; none if it is gone or damaged."""
        try:
            return read_flight(self._storage.files[path])
        except (KeyError, ValueError):
            return []
