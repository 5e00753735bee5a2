"""The checksum inside sealed tensors, for processes that store and check such bytes without torch.

Invariant: `is_intact` is False for bytes that differ from what was sealed (tests/unit/test_flight.py and
tests/unit/test_payloads.py flip and cut them). The seal is a CRC-32 over everything. It is computed once, where the
tensors are made, and checked where they are used; it detects damage in between, not malice.
"""

import os
import re
import zlib
from pathlib import Path

import msgspec

LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header."""
OPENING = b'{"__metadata__":{"seal":"'
UNSEALED = b"00000000"
SEAL = slice(LENGTH_BYTES + len(OPENING), LENGTH_BYTES + len(OPENING) + len(UNSEALED))
"""Position of the seal: first in the header, so that it is found without parsing the bytes it protects."""

_PART = re.compile(r"(.*)@(\d+)\+(\d+)")


class SealLabels(msgspec.Struct, frozen=True):
    """What is said about the tensors."""

    schema: str
    facts: str


class _SealHeader(msgspec.Struct, frozen=True, rename={"labels": "__metadata__"}):
    labels: SealLabels


class _SealedTensor(msgspec.Struct, frozen=True):
    """Header entry of one tensor, or of the labels, which have no offsets."""

    data_offsets: tuple[int, int] = (0, 0)


def labels_in(header: bytes | memoryview) -> SealLabels:
    """The labels of a header; raises MsgspecError or UnicodeDecodeError if it has none."""
    return msgspec.json.decode(header, type=_SealHeader).labels


def tensor_bytes(header: bytes | memoryview) -> int:
    """Number of bytes that follow the header; raises MsgspecError or UnicodeDecodeError if it is damaged."""
    entries = msgspec.json.decode(header, type=dict[str, _SealedTensor])
    return max((entry.data_offsets[1] for entry in entries.values()), default=0)


def seal_of(data: bytes) -> str:
    """The seal stored in the bytes."""
    return data[SEAL].decode(errors="replace")


def checksum(data: bytes) -> str:
    """The seal computed from the bytes."""
    blank = bytearray(data)
    blank[SEAL] = UNSEALED
    return f"{zlib.crc32(blank):08x}"


def with_seal(data: bytes) -> bytes:
    """The bytes with their seal set, after a header whose place for it is blank."""
    return data[: SEAL.start] + checksum(data).encode() + data[SEAL.stop :]


def read_place(place: Path) -> bytes:
    """The bytes of a whole file, or of a part of one (`BlobRef.place`); raises OSError if they cannot be read."""
    part = _PART.fullmatch(str(place))
    if part is None:
        return place.read_bytes()
    with open(part[1], "rb") as file:
        return os.pread(file.fileno(), int(part[3]), int(part[2]))


def is_intact(data: bytes) -> bool:
    return seal_of(data) == checksum(data)
