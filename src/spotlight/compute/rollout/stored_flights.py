"""The parts of flights in the store's files, read without torch: their headers say which sample they continue.

A file of flights (`node/blob_store.py`) is one sealed part after the other. So the bytes are their own index: a commit
costs no record, and a controller that comes back finds everything that was committed.

Invariant (tests/unit/test_stored_flights.py): a file is read up to its first part that is cut short or unreadable, and
nothing in it raises an error; `is_part_intact` decides whether the tensors of a part are undamaged.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from spotlight.compute.rollout.seal import LENGTH_BYTES, is_intact, labels_in, seal_of, tensor_bytes
from spotlight.control.recovery import StoredPart
from spotlight.core.blobs import BlobKind, BlobRef
from spotlight.core.types import NodeId
from spotlight.core.work import Request

FLIGHT_SCHEMA = "spotlight-flight-3"
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
MOST_HEADER = 1 << 20
"""Bytes of the longest header that is read; they have about a thousand."""


class FlightFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a part of a flight says about itself."""

    request: Request
    attempt: int
    step: int
    since: int
    """Step of the part that it builds on; 0: the flight is whole."""
    base: str
    """Seal of that part: parts of two attempts may have the same step, but not the same last bits."""
    weights_digest: str


def stored_parts(store: Path) -> list[StoredPart]:
    """All parts of flights in the files of a store."""
    files = sorted(path for path in (store / BlobKind.FLIGHT.value).glob("*") if path.is_file())
    return [part for path in files for part in parts_in(store, path)]


def parts_in(store: Path, path: Path) -> list[StoredPart]:
    """The parts of one file; the last one that can be read counts as the last one of the file."""
    found: list[tuple[FlightFacts, BlobRef]] = []
    name = str(path.relative_to(store))
    for offset, size, header in _headers(path):
        try:
            labels = labels_in(header[LENGTH_BYTES:])
            if labels.schema != FLIGHT_SCHEMA:
                break
            facts = msgspec.json.decode(labels.facts, type=FlightFacts)
        except UNREADABLE:
            break
        number = len(found) + 1
        found.append((facts, BlobRef(BlobKind.FLIGHT, name, seal_of(header), size, offset, number)))
    if found:
        facts, ref = found[-1]
        found[-1] = facts, msgspec.structs.replace(ref, is_last=True)
    writer = NodeId(path.name.rpartition("-")[0])
    return [
        StoredPart(f.request.id, f.attempt, f.step, f.since, f.base, f.weights_digest, ref, writer) for f, ref in found
    ]


def is_part_intact(store: Path, ref: BlobRef) -> bool:
    """Whether the bytes of this part are there and undamaged."""
    try:
        with (store / ref.path).open("rb") as file:
            data = os.pread(file.fileno(), ref.size, ref.offset)
    except OSError:
        return False
    return len(data) == ref.size and seal_of(data) == ref.digest and is_intact(data)


def _headers(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Offset, size and header of each part, until one is cut short or unreadable."""
    try:
        with path.open("rb") as file:
            end, offset = os.fstat(file.fileno()).st_size, 0
            while offset < end:
                length = int.from_bytes(os.pread(file.fileno(), LENGTH_BYTES, offset), "little")
                if not 0 < length <= MOST_HEADER:
                    return
                header = os.pread(file.fileno(), LENGTH_BYTES + length, offset)
                size = len(header) + tensor_bytes(header[LENGTH_BYTES:])
                if len(header) < LENGTH_BYTES + length or not len(header) <= size <= end - offset:
                    return
                yield offset, size, header
                offset += size
    except (OSError, *UNREADABLE):
        return
