"""Takes the bytes out of a worker's messages, stores them, and puts references in their place; and the reverse.

Workers on the machine of the reserved node's store write their flights there themselves; those of other machines send
them to their agent. Processes use it over the store of the reserved node, the simulator over its simulated disk.

Invariant (tests/unit/test_unloading.py): a message leaves the node only after its bytes are stored, and without them.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from spotlight.core import messages as m
from spotlight.core.blobs import BlobKind, BlobRef
from spotlight.core.errors import SpotlightError, Stopped
from spotlight.core.work import Work, file_of, place_of

PICTURES = 24
"""Pictures kept per evaluation, always of the same prompts: enough to see what changes."""
CommitFrame: TypeAlias = tuple[m.Commit | m.HandBack, bytes]
"""A message and its part of a flight; no bytes if no work is worth keeping."""


class BlobError(SpotlightError):
    """A blob is missing or damaged."""


class Reads(Protocol):
    def get(self, ref: BlobRef) -> bytes:
        """Raises BlobError if the bytes are missing or damaged."""


class Puts(Protocol):
    def put(self, kind: BlobKind, name: str, data: bytes) -> BlobRef:
        """Store these bytes; raises Stopped if the disk takes no more."""


class Appends(Reads, Protocol):
    """Where the parts of flights lie."""

    def append(self, data: bytes) -> BlobRef:
        """Store a part of a flight; raises Stopped if the disk takes no more."""

    def append_all(self, parts: Sequence[bytes]) -> Sequence[BlobRef]:
        """Store parts of flights, all or none; raises Stopped if the disk takes no more."""


class Fetched(NamedTuple):
    """Flights of a grant."""

    flights: bytes
    """Bytes of all flights, by request, as the worker reads them."""
    unread: Sequence[tuple[m.Granted, str]]
    """Leases whose flight cannot be read, each with the reason."""


class FlightStore(Protocol):
    """Where an agent stores and reads flights: at once on the run's own machine, later from another one."""

    def append(self, data: bytes, done: Callable[[BlobRef | Stopped], None]) -> None:
        """Store a part of a flight; `done` is called once, in the order of these calls. Stopped: the disk is full."""

    def needs_fetch(self, grant: m.Grant) -> bool:
        """Whether something must be read before a worker can use the grant."""

    def fetch(self, grant: m.Grant, done: Callable[[Fetched], None]) -> None:
        """Read the flights of a grant; `done` is called once."""


class NearStore:
    """A `FlightStore` on the agent's own machine."""

    def __init__(self, store: Appends) -> None:
        self._store = store

    def append(self, data: bytes, done: Callable[[BlobRef | Stopped], None]) -> None:
        try:
            found: BlobRef | Stopped = self._store.append(data)
        except Stopped as error:
            found = error
        done(found)

    def needs_fetch(self, grant: m.Grant) -> bool:
        return bool([lease for lease in grant.leases if lease.flight])

    def fetch(self, grant: m.Grant, done: Callable[[Fetched], None]) -> None:
        done(flights_of(grant, self._store))


def stored_commits(commits: Sequence[CommitFrame], store: Appends) -> m.Commits | m.StoreFailed:
    """Store the flights of a step, and return the messages with their references; or that the disk takes no more."""
    flights = [flight for _, flight in commits if flight]
    try:
        refs = iter(store.append_all(flights) if flights else ())
    except Stopped as error:
        return m.StoreFailed(problem=str(error))
    return m.Commits(
        messages=tuple(
            [msgspec.structs.replace(message, flight=next(refs)) if flight else message for message, flight in commits]
        )
    )


def post_commits(
    commits: Sequence[CommitFrame], store: Appends | None, send: Callable[[m.AnyMessage, bytes], None]
) -> None:
    """Send the commits of a step: stored here and in one message, or, without a store, each with its bytes."""
    if store is not None:
        send(stored_commits(commits, store), b"")
        return
    for message, flight in commits:
        send(message, flight)


def stored_sample(result: m.Result, tensors: bytes, picture: Callable[[], bytes], store: Puts) -> BlobRef | None:
    """Store a rollout's tensors, unless its worker has, or the PNG of one of the first held-out prompts.

    Nothing else outlives its score.
    """
    if result.payload is not None:
        return result.payload
    work, _, group, _ = place_of(result.request)
    name = file_of(result.request, result.attempt)
    if work is Work.ROLLOUT:
        return store.put(BlobKind.PAYLOAD, f"{name}.safetensors", tensors)
    if work is Work.EVALUATION and group < PICTURES:
        return store.put(BlobKind.PICTURE, f"{name}.png", picture())
    return None


def flights_of(grant: m.Grant, store: Reads) -> Fetched:
    flights: dict[str, bytes] = {}
    unread = []
    for lease in grant.leases:
        try:
            if lease.flight:
                flights[lease.request.id] = b"".join([store.get(ref) for ref in lease.flight])
        except BlobError as error:
            unread.append((lease, str(error)))
    return Fetched(msgspec.msgpack.encode(flights), unread)
