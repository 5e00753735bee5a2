"""The checksum that sealed tensors carry in themselves, for those who keep and check such bytes without torch.

Invariant: bytes are what was sealed, or `is_intact` says that they are not (tests/unit/test_flight.py and
tests/unit/test_payloads.py flip and cut them). The seal is a CRC-32 over everything, made once, where the tensors were
made, and checked where they are used; it finds damage on the whole way between, not malice.
"""

import zlib

LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header."""
OPENING = b'{"__metadata__":{"seal":"'
UNSEALED = b"00000000"
SEAL = slice(LENGTH_BYTES + len(OPENING), LENGTH_BYTES + len(OPENING) + len(UNSEALED))
"""Where the seal is: it comes first in the header, so that it is found without reading what it protects."""


def seal_of(data: bytes) -> str:
    """The seal as it is written there."""
    return data[SEAL].decode(errors="replace")


def checksum(data: bytes) -> str:
    """The seal as it should be."""
    blank = bytearray(data)
    blank[SEAL] = UNSEALED
    return f"{zlib.crc32(blank):08x}"


def is_intact(data: bytes) -> bool:
    return seal_of(data) == checksum(data)
