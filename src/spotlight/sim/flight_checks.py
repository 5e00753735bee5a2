"""Invariants of flights over the lives of a controller: what was committed is continued, and nothing else.

The limits are taken from the records alone, and the bytes are read from the storage, so that neither the ledger nor
`control/recovery.py` decides about itself.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from spotlight.control.flights import Flights
from spotlight.core.blobs import BlobRef
from spotlight.core.events import Accepted, AnyEvent, Leased, Published, Released
from spotlight.core.work import RequestId, WeightsId
from spotlight.sim.fakes import FlightPart, read_flight
from spotlight.sim.storage import SimStorage


class _Limit(NamedTuple):
    """What the records allow a sample to continue from."""

    attempt: int | None
    """The live attempt."""
    step: int
    """Step at which it began, or at which the next one begins."""
    origin: int = 0
    """The attempt that began at step 0."""


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
        self._recovered: dict[RequestId, int] = {}
        """Steps of the flights of samples that were not leased since the restart."""
        self._published: dict[WeightsId, str] = {}
        self.problems: list[str] = []

    def observe(self, event: AnyEvent) -> None:
        match event:
            case Leased(request=request, attempt=attempt, step=step):
                self._limits[request] = _Limit(attempt, step, self._origin(request) if step else attempt)
                recovered = self._recovered.pop(request, step)
                if recovered != step:
                    self.problems.append(f"{request} has a flight of step {recovered}, but is leased at step {step}")
            case Published(weights=weights, digest=digest):
                if self._published.get(weights, digest) != digest:
                    # Samples of other bits start over.
                    self._recovered.clear()
                self._published[weights] = digest
            case Released(request=request, step=step):
                self._limits[request] = _Limit(None, step, self._origin(request))
            case Accepted(request=request):
                self._limits[request] = _Limit(None, 0)
            case _:
                pass

    def _origin(self, request: RequestId) -> int:
        return self._limits[request].origin if request in self._limits else 0

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

    def resumed(self, flights: Flights, outstanding: Mapping[RequestId, WeightsId], damaged: Collection[str]) -> None:
        """The next life has started; `outstanding` has the weights of each unfinished sample."""
        needed: set[str] = set()
        self._recovered.clear()
        for request, weights in outstanding.items():
            step, refs = flights.newest(request)
            needed.update(ref.path for ref in refs)
            if step:
                self._recovered[request] = step
                self.problems += self._wrong(request, step, refs, self._published[weights])
            left = self._left.get(request)
            if left is not None and step < left.step and not any(path in damaged for path in left.files):
                made_with = {part.digest for path in left.files for part in self._read(path)}
                if made_with <= {self._published[weights]}:
                    self.problems.append(
                        f"{request} was committed at step {left.step} and continues at step {step} after a restart"
                    )
        unneeded = [path for path in self._storage.flight_files() if path not in needed]
        self.problems += [f"{path} is kept, but no sample continues from it" for path in unneeded]

    def _wrong(self, request: RequestId, step: int, refs: tuple[BlobRef, ...], digest: str) -> Iterator[str]:
        parts = [part for ref in refs for part in self._read(ref.path)]
        limit = self._left_limits.get(request, _Limit(None, 0))
        if [part.request for part in parts] != [request] * len(refs) or parts[-1].step != step:
            yield f"{request} continues from step {step} of another flight: {parts}"
        elif parts[-1].attempt < self._origin(request):
            yield f"{request} continues attempt {parts[-1].attempt}, but {self._limits[request]} gave that one up"
        elif parts[-1].attempt != limit.attempt and step > limit.step:
            yield f"{request} continues at step {step} of attempt {parts[-1].attempt}, but may from {limit}"
        elif parts[-1].digest != digest:
            yield f"{request} continues a flight made with {parts[-1].digest}, but {digest} is published"

    def _read(self, path: str) -> list[FlightPart]:
        """The part in a file; none if it is gone or damaged."""
        try:
            return read_flight(self._storage.files[path])
        except (KeyError, ValueError):
            return []
