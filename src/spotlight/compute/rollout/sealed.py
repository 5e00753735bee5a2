"""Tensors on their way between processes: safetensors bytes with typed facts and a seal over all of them.

Invariant: what `unsealed` returns is bit for bit what `sealed` was given, and other bytes are a SealError
(tests/unit/test_flight.py). Tensors are fp32 and never rounded. The seal is a CRC-32: it finds damage, not malice.

The bytes are put together here, several times faster than by the library and a digest, because flights are committed
every few steps; they are plain safetensors, and the library reads them.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from spotlight.compute.rollout.seal import LENGTH_BYTES, SEAL, UNSEALED, checksum, seal_of
from spotlight.core.errors import InputError
from spotlight.core.work import RequestId

ALIGNMENT = 8

Facts = TypeVar("Facts", bound=msgspec.Struct)
Stack: TypeAlias = Tensor | Sequence[Tensor]
"""A tensor, or the tensors that stacked up are one: they are joined in the bytes, not before."""


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


class _SealedTensor(msgspec.Struct, frozen=True):
    """What the header says of one tensor, or of the labels, which have no place of their own."""

    data_offsets: tuple[int, int] = (0, 0)


def sealed(schema: str, facts: msgspec.Struct, tensors: Mapping[str, Stack]) -> bytes:
    """The bytes; tensors must be fp32, and stacks have at least one."""
    labels = {"seal": UNSEALED.decode(), "schema": schema, "facts": msgspec.json.encode(facts).decode()}
    entries: dict[str, object] = {"__metadata__": labels}
    views: list[memoryview] = []
    end = 0
    for name, stack in tensors.items():
        rows = (stack,) if isinstance(stack, Tensor) else stack
        if any(row.dtype != torch.float32 for row in rows):
            raise TypeError(f"{name} of '{schema}' is not float32, in which everything is exact; cast nothing.")
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


def unsealed_parts(schema: str, data: bytes, facts: type[Facts]) -> Iterator[tuple[Facts, dict[str, Tensor]]]:
    """Of several sealed ones, one after the other; the first is always looked for, so that nothing is a SealError."""
    rest = memoryview(data)
    while True:
        size = _first_size(rest)
        yield unsealed(schema, bytes(rest[:size]), facts)
        rest = rest[size:]
        if not rest:
            return


def _first_size(data: memoryview) -> int:
    """Bytes of the first part, by its own word; all of them where it makes no sense, for the seal to find out."""
    begin = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
    try:
        entries = msgspec.json.decode(data[LENGTH_BYTES:begin], type=dict[str, _SealedTensor])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return len(data)
    size = begin + max(entry.data_offsets[1] for entry in entries.values()) if entries else 0
    return size if 0 < size <= len(data) else len(data)


def unsealed(schema: str, data: bytes, facts: type[Facts]) -> tuple[Facts, dict[str, Tensor]]:
    """Facts and tensors; the tensors may alias `data`, so copy what is to be written to."""
    told, found = seal_of(data), checksum(data)
    if found != told:
        raise SealError(
            f"{len(data)} bytes of '{schema}' are sealed with {told!r} but their content has {found!r}, so they were "
            "cut short or altered; make them again."
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
