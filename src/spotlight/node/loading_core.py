"""Which published sets a worker holds and where it takes them from, without tensors; part of its `WorkerCore`.

    Adopt --between devices, worker published this set--> its own copy
    Load --held already--> reported
    Load --not between devices--> store
    Load --between devices, worker published this set--> its own copy --cannot be used--.
    Load --between devices--> REQUESTED <-----------------------------------------------'
                                |--Offered with handles--> neighbour's device
                                `--Offered without handles, a failed copy, or a timeout--> store
    store --not the announced set--> the agent copies the file again and repeats the Load, once

Every Load first drops the sets that it does not keep, and the requests for them. A second Load of a requested set
repeats the request. All methods with effects are generators: the driver carries out an effect and sends its completion
back:

    KeepOwn      copy a set that this worker publishes                     -> True, or False if there is no room
    TakeOwn      apply that copy                                           -> digest, or None if it cannot be used
    TakeOffered  copy a set from the neighbour that offers it              -> digest, or None if it cannot be used
    TakeStored   load a set from the node's store                          -> digest, or DamagedCopy
    ReadHeld     read the digest of a set that is applied already          -> digest
    OfferHeld    make handles of a held set for a neighbour                -> handles; none if it cannot be shared

Invariants (tests/unit/test_neighbours_copy.py, tests/unit/test_own_weights.py, storms): each Load is answered by one
Held with the digest of what was applied, unless a later order no longer keeps its set. A copy with another digest than
the announced one is dropped; if the store has it a second time, the worker ends with that reason, or reports its
digest, for which the controller ends it.
"""

import logging
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from spotlight.core.crew_messages import Adopt, AskNeighbour, CopyDamaged, Offered
from spotlight.core.errors import WeightsError
from spotlight.core.messages import AnyMessage, Held, Load
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId

PATIENCE_S = 5.0
"""Wait for a neighbour's offer: it replies between two steps, and the store takes a few seconds for 20 billion
parameters."""
log = logging.getLogger("spotlight.worker")


@dataclass(frozen=True, slots=True)
class KeepOwn:
    weights: WeightsId


@dataclass(frozen=True, slots=True)
class TakeOwn:
    weights: WeightsId


@dataclass(frozen=True, slots=True)
class TakeOffered:
    load: Load
    handles: bytes


@dataclass(frozen=True, slots=True)
class TakeStored:
    load: Load


@dataclass(frozen=True, slots=True)
class ReadHeld:
    weights: WeightsId


@dataclass(frozen=True, slots=True)
class OfferHeld:
    weights: WeightsId


@dataclass(frozen=True, slots=True)
class DamagedCopy:
    """The store's file is not the set that it should be."""

    problem: str


LoadEffect: TypeAlias = KeepOwn | TakeOwn | TakeOffered | TakeStored | ReadHeld | OfferHeld
Applied: TypeAlias = Generator[LoadEffect, Any, None]


class HeldSets(Protocol):
    """The sets of a worker; none of these calls takes long."""

    def held(self) -> Sequence[tuple[WeightsId, str]]:
        """Sets that are applied, with their digests."""

    def drop(self, weights: WeightsId) -> object:
        """Free a set that is applied."""

    def drop_own(self, weights: WeightsId) -> object:
        """Free the copy of a set that this worker published."""


@dataclass(frozen=True)
class _Request:
    load: Load
    until: float


class LoadingCore:
    """One worker's decisions about weights."""

    def __init__(
        self,
        me: WorkerId,
        sets: HeldSets,
        send: Callable[[AnyMessage, bytes], None],
        between_devices: bool,
        clock: Callable[[], float],
    ) -> None:
        """`between_devices`: sets are copied, from device to device if possible; otherwise the store's pages are the
        weights."""
        self._me = me
        self._sets = sets
        self._send = send
        self._between_devices = between_devices
        self._clock = clock
        self.requests: dict[WeightsId, _Request] = {}
        """Sets that a neighbour may offer."""
        self._renewed: set[tuple[WeightsId, str]] = set()
        """Sets whose file was copied again for this worker, with their digests."""
        self._own: set[WeightsId] = set()
        """Sets of the newest version that this worker has published and copied, until it applies them."""

    def published(self, weights: WeightsId) -> Applied:
        """Copy a set that this worker has published, because the trained weights change."""
        for older in sorted(own for own in self._own if own.version != weights.version):
            self._own.discard(older)
            self._sets.drop_own(older)
        if self._between_devices and (yield KeepOwn(weights)):
            self._own.add(weights)

    def apply(self, message: AnyMessage, blob: bytes) -> Applied:
        """Apply a message about weights."""
        match message:
            case Load():
                yield from self._load(message)
            case Adopt():
                yield from self._adopt(message)
            case AskNeighbour():
                yield from self._offer(message)
            case Offered():
                yield from self._offered(message, blob)
            case _:
                raise TypeError(f"a worker does not handle {type(message).__name__}")

    def seconds_left(self) -> float:
        """Seconds until the first request times out."""
        return max(0.0, min(request.until for request in self.requests.values()) - self._clock())

    def expire(self) -> Applied:
        """Load the sets whose request has timed out from the store."""
        now = self._clock()
        for request in [request for request in self.requests.values() if request.until <= now]:
            del self.requests[request.load.weights]
            yield from self._from_store(request.load)

    def _load(self, load: Load) -> Applied:
        """Load these weights, and drop every set that the order does not keep."""
        self._keep_only((load.weights, *load.keep))
        if self._holds(load.weights):
            held: str = yield ReadHeld(load.weights)
            self._report_held(load.weights, held)
        elif not self._between_devices:
            yield from self._from_store(load)
        elif not (yield from self._from_own_copy(load)):
            self.requests[load.weights] = _Request(load, self._clock() + PATIENCE_S)
            self._send(AskNeighbour(weights=load.weights, newcomer=self._me), b"")

    def _adopt(self, order: Adopt) -> Applied:
        """Apply this worker's own copy, if it has one; otherwise the Load that follows brings the set."""
        if order.weights in self._own and not self._holds(order.weights):
            self._keep_only((order.weights, *order.keep))
            yield from self._from_own_copy(order)

    def _offer(self, request: AskNeighbour) -> Applied:
        """Reply to a neighbour that requests these weights."""
        handles = b""
        if self._holds(request.weights):
            handles = yield OfferHeld(request.weights)
        self._send(Offered(weights=request.weights, newcomer=request.newcomer), handles)

    def _offered(self, answer: Offered, handles: bytes) -> Applied:
        request = self.requests.pop(answer.weights, None)
        if request is None:
            return
        took = bool(handles) and (yield from self._took(TakeOffered(request.load, handles), request.load))
        if not took:
            yield from self._from_store(request.load)

    def _keep_only(self, wanted: Collection[WeightsId]) -> None:
        for weights, _ in self._sets.held():
            if weights not in wanted:
                self._sets.drop(weights)
        for weights in [weights for weights in self.requests if weights not in wanted]:
            del self.requests[weights]

    def _from_own_copy(self, order: Load | Adopt) -> Generator[LoadEffect, Any, bool]:
        """Apply this worker's own copy; True if it has one that is the announced set."""
        if order.weights not in self._own:
            return False
        self._own.discard(order.weights)
        return (yield from self._took(TakeOwn(order.weights), order))

    def _took(self, copy: TakeOwn | TakeOffered, order: Load | Adopt) -> Generator[LoadEffect, Any, bool]:
        """Apply a copy and report it; False, and nothing is held, if it is not the announced set."""
        weights, found = order.weights, (yield copy)
        if found == order.digest:
            self._report_held(weights, found)
            return True
        if found is not None:
            # Another gang may have published the set again, or a neighbour has reused the memory that it offered.
            log.warning("%s is loaded anew: %s was announced, but the copy has %s", weights, order.digest, found)
            self._sets.drop(weights)
        return False

    def _from_store(self, load: Load) -> Applied:
        found: str | DamagedCopy = yield TakeStored(load)
        announced = load.weights, load.digest
        if found != load.digest and announced not in self._renewed:
            self._renewed.add(announced)
            problem = f"its digest is {found}, but {load.digest} was published"
            if isinstance(found, DamagedCopy):
                problem = found.problem
            else:
                self._sets.drop(load.weights)
            self._send(CopyDamaged(weights=load.weights, problem=problem), b"")
        elif isinstance(found, DamagedCopy):
            raise WeightsError(found.problem)
        else:
            self._report_held(load.weights, found)

    def _holds(self, weights: WeightsId) -> bool:
        return any(held == weights for held, _ in self._sets.held())

    def _report_held(self, weights: WeightsId, digest: str) -> None:
        self._send(Held(weights=weights, digest=digest), b"")
