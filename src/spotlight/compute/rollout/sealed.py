"""Tensors on their way between processes: safetensors bytes with typed facts and a seal over all of them.

Invariant: what `unsealed` returns is bit for bit what `sealed` was given, and other bytes are a SealError
(tests/unit/test_flight.py). Tensors are fp32 and never rounded. The seal is a CRC-32: it finds damage, not malice.

The bytes are put together here, several times faster than by the library and a digest, because flights are committed
every few steps; they are plain safetensors, and the library reads them.
"""

import zlib
from collections.abc import Mapping
from typing import TypeVar

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from spotlight.core.errors import InputError
from spotlight.core.work import RequestId

LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header."""
ALIGNMENT = 8
OPENING = b'{"__metadata__":{"seal":"'
UNSEALED = b"00000000"
SEAL = slice(LENGTH_BYTES + len(OPENING), LENGTH_BYTES + len(OPENING) + len(UNSEALED))
"""Where the seal is: it comes first in the header, so that it is found without reading what it protects."""

Facts = TypeVar("Facts", bound=msgspec.Struct)


class SealError(InputError):
    """A flight or payload that is damaged, or of something else than it is taken for; `request` says what for."""

    def __init__(self, message: str, request: RequestId | None = None) -> None:
        super().__init__(message)
        self.request = request


class _Labels(msgspec.Struct, frozen=True):
    schema: str
    facts: str


class _Header(msgspec.Struct, frozen=True, rename={"labels": "__metadata__"}):
    labels: _Labels


def sealed(schema: str, facts: msgspec.Struct, tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes; tensors must be fp32 on the host."""
    coarse = sorted(name for name, tensor in tensors.items() if tensor.dtype != torch.float32)
    if coarse:
        raise TypeError(
            f"{', '.join(coarse)} of '{schema}' is not float32, in which everything is exact; cast nothing."
        )
    labels = {"seal": UNSEALED.decode(), "schema": schema, "facts": msgspec.json.encode(facts).decode()}
    entries: dict[str, object] = {"__metadata__": labels}
    views = [tensor.contiguous().numpy().data for tensor in tensors.values()]
    end = 0
    for name, view in zip(tensors, views, strict=True):
        begin, end = end, end + view.nbytes
        entries[name] = {"dtype": "F32", "shape": view.shape, "data_offsets": (begin, end)}
    written = msgspec.json.encode(entries)
    written += b" " * (-len(written) % ALIGNMENT)
    header = bytearray(len(written).to_bytes(LENGTH_BYTES, "little") + written)
    crc = zlib.crc32(header)
    for view in views:
        crc = zlib.crc32(view, crc)
    header[SEAL] = f"{crc:08x}".encode()
    return b"".join([header, *views])


def unsealed(schema: str, data: bytes, facts: type[Facts]) -> tuple[Facts, dict[str, Tensor]]:
    """Facts and tensors; the tensors may alias `data`, so copy what is to be written to."""
    blank = bytearray(data)
    blank[SEAL] = UNSEALED
    found = f"{zlib.crc32(blank):08x}".encode()
    if found != data[SEAL]:
        raise SealError(
            f"{len(data)} bytes of '{schema}' are sealed with {data[SEAL]!r} but their content has {found!r}, so they "
            "were cut short or altered; make them again."
        )
    try:
        length = int.from_bytes(data[:LENGTH_BYTES], "little")
        labels = msgspec.json.decode(data[LENGTH_BYTES : LENGTH_BYTES + length], type=_Header).labels
        if labels.schema != schema:
            raise SealError(
                f"tensors labelled '{labels.schema}' came where '{schema}' was expected, so they are of another kind "
                "or of another version of the code; run the same version everywhere."
            )
        return msgspec.json.decode(labels.facts, type=facts), load(data)
    except (SafetensorError, msgspec.MsgspecError) as problem:
        raise SealError(
            f"{len(data)} bytes of '{schema}' cannot be read ({problem}), so another version of the code wrote them; "
            "run the same version everywhere."
        ) from problem
