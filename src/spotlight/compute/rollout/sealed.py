"""Tensors as messages between processes: safetensors bytes with typed facts and a seal over all of them.

Invariant: `unsealed` returns bit for bit what `sealed` was given, and other bytes are a SealError
(tests/unit/test_flight.py). Tensors are fp32 and never rounded. The seal is a CRC-32: it detects damage, not malice.

The bytes are assembled here, several times faster than by the library and a digest, because flights are committed
every few steps. They are plain safetensors, which the library reads.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from spotlight.compute.rollout.seal import LENGTH_BYTES, SEAL, UNSEALED, checksum, labels_in, seal_of, tensor_bytes
from spotlight.core.errors import InputError
from spotlight.core.work import RequestId

ALIGNMENT = 8

Facts = TypeVar("Facts", bound=msgspec.Struct)
Stack: TypeAlias = Tensor | Sequence[Tensor]
"""A tensor, or the rows of one, which are joined in the bytes, not before."""


class SealError(InputError):
    """A flight or payload that is damaged or does not belong to `request`."""

    def __init__(self, message: str, request: RequestId | None = None) -> None:
        super().__init__(message)
        self.request = request


def sealed(schema: str, facts: msgspec.Struct, tensors: Mapping[str, Stack]) -> bytes:
    """Return the sealed bytes; tensors must be fp32, and stacks must not be empty."""
    labels = {"seal": UNSEALED.decode(), "schema": schema, "facts": msgspec.json.encode(facts).decode()}
    entries: dict[str, object] = {"__metadata__": labels}
    views: list[memoryview] = []
    end = 0
    for name, stack in tensors.items():
        rows = (stack,) if isinstance(stack, Tensor) else stack
        if any(row.dtype != torch.float32 for row in rows):
            raise TypeError(f"{name} of '{schema}' is not float32, so it was cast on the way; pass it as computed.")
        new = [row.cpu().contiguous().numpy().data for row in rows]
        shape = tuple(stack.shape) if isinstance(stack, Tensor) else (len(new), *stack[0].shape)
        begin, end = end, end + sum(view.nbytes for view in new)
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": (begin, end)}
        views += new
    written = msgspec.json.encode(entries)
    written += b" " * (-len(written) % ALIGNMENT)
    header = bytearray(len(written).to_bytes(LENGTH_BYTES, "little") + written)
    crc = zlib.crc32(header)
    for view in views:
        crc = zlib.crc32(view, crc)
    header[SEAL] = f"{crc:08x}".encode()
    return b"".join([header, *views])


class UnsealedPart(NamedTuple, Generic[Facts]):
    """One of several concatenated parts."""

    facts: Facts
    tensors: dict[str, Tensor]
    seal: str


def unsealed_parts(schema: str, data: bytes, facts: type[Facts]) -> Iterator[UnsealedPart[Facts]]:
    """Yield each of several concatenated parts; empty bytes are a SealError."""
    rest = memoryview(data)
    while True:
        size = _first_size(rest)
        part = bytes(rest[:size])
        yield UnsealedPart(*unsealed(schema, part, facts), seal_of(part))
        rest = rest[size:]
        if not rest:
            return


def _first_size(data: memoryview) -> int:
    """Size of the first part by its own header; of all bytes where the header is damaged, which the seal detects."""
    begin = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    try:
        size = begin + tensor_bytes(data[LENGTH_BYTES:begin])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return len(data)
    return size if 0 < size <= len(data) else len(data)


def unsealed(schema: str, data: bytes, facts: type[Facts]) -> tuple[Facts, dict[str, Tensor]]:
    """Return facts and tensors; the tensors may alias `data`, so copy them before writing to them."""
    stored, computed = seal_of(data), checksum(data)
    if computed != stored:
        raise SealError(
            f"{len(data)} bytes of '{schema}' are sealed with {stored!r} but their content has {computed!r}, so they "
            "were cut short or altered; make them again."
        )
    try:
        length = int.from_bytes(data[:LENGTH_BYTES], "little")
        labels = labels_in(data[LENGTH_BYTES : LENGTH_BYTES + length])
        if labels.schema != schema:
            raise SealError(
                f"the tensors are labelled '{labels.schema}' but '{schema}' is expected, so they are of another kind "
                "or of another version of the code; run the same version everywhere."
            )
        return msgspec.json.decode(labels.facts, type=facts), load(data)
    except (SafetensorError, msgspec.MsgspecError) as problem:
        raise SealError(
            f"{len(data)} bytes of '{schema}' cannot be read ({problem}), so another version of the code wrote them; "
            "run the same version everywhere."
        ) from problem
