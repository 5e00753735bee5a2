"""Chooses the flights that unfinished samples continue from after a restart of the controller.

The store outlives the controller: it has the parts of all commits whose files were not deleted yet, also of commits
that were overtaken, given up or never reported. A part names the one that it builds on by step and seal, so the parts
of a flight are found again without any record of commits, and those of two attempts are never joined.

    stored: 2 <- 4 <- 6 <- 8 of attempt 1, 4 <- 6 of attempt 2       ledger: attempt 2 is live and began at step 4
    recovered: 2, 4 of attempt 1 and 6 of attempt 2; if 6 is damaged, 2 and 4

Invariants (tests/unit/test_recovery.py, storms): a recovered flight is complete and undamaged, and was made with the
published weights, each part by the node that held its attempt. It is a commit of the live attempt, or not later than
the step at which that attempt began or the next one begins; so nothing comes back that was given up after a failure.
It is the newest one of these.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from spotlight.control.ledger.book import Book
from spotlight.core.blobs import BlobRef
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import RequestId, WeightsId


class StoredPart(NamedTuple):
    """A part of a flight in the store."""

    request: RequestId
    attempt: int
    step: int
    since: int
    """Step of the part that it builds on; 0 for none."""
    base: str
    """Seal of that part."""
    weights_digest: str
    ref: BlobRef
    """Its digest is the part's seal."""
    writer: NodeId
    """Node whose file it lies in."""


RecoveredFlight: TypeAlias = tuple[StoredPart, ...]
"""The parts of one flight, the first one first."""


class Records(NamedTuple):
    """What the journal says about leases and weights."""

    holders: Mapping[tuple[RequestId, int], WorkerId]
    """Worker that each attempt was leased to."""
    published: Mapping[WeightsId, str]
    """Digests of the sets published so far."""


def recover(
    stored: Iterable[StoredPart], ledger: Book, records: Records, is_intact: Callable[[BlobRef], bool]
) -> dict[RequestId, RecoveredFlight]:
    """The newest flight of each unfinished sample."""
    by_request: dict[RequestId, list[StoredPart]] = {}
    for part in stored:
        # A node on another machine can write what it likes, but only into files of its own.
        holder = records.holders.get((part.request, part.attempt), "")
        if holder.partition("/")[0] == part.writer:
            by_request.setdefault(part.request, []).append(part)
    found = {}
    for request, parts in by_request.items():
        limit = ledger.resume_limit(request)
        if limit is None:
            continue
        of = ledger.request(request)
        digest, steps = records.published.get(of.weights), of.sample.sampling.steps
        heads = [
            part
            for part in parts
            if 0 < part.step < steps
            and part.attempt >= limit.origin
            and (part.attempt == limit.attempt or part.step <= limit.step)
            and digest in (None, part.weights_digest)
        ]
        flight = next(_whole(heads, parts, is_intact), None)
        if flight is not None:
            found[request] = flight
    return found


def _whole(
    heads: Sequence[StoredPart], parts: Sequence[StoredPart], is_intact: Callable[[BlobRef], bool]
) -> Iterator[RecoveredFlight]:
    """Complete and undamaged flights, the newest first."""
    copies: dict[tuple[int, str, str], list[StoredPart]] = {}
    for part in parts:
        # The same part may be there twice: a hand-back without a step after a commit has its bytes.
        copies.setdefault((part.step, part.ref.digest, part.weights_digest), []).append(part)
    for head in sorted(heads, key=lambda part: (part.step, part.attempt), reverse=True):
        chain: list[StoredPart] = []
        found = head if is_intact(head.ref) else None
        while found is not None:
            chain.append(found)
            if not found.since:
                yield tuple(reversed(chain))
                break
            bases = copies.get((found.since, found.base, found.weights_digest), []) if found.since < found.step else []
            found = next((base for base in bases if is_intact(base.ref)), None)
