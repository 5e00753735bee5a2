"""Tensors of a checkpoint, written as boxes by any number of writers and read as boxes by any number of readers.

    each writer:  entries = write(folder / file_of(rank), shards)
    one of them:  write_index(folder, Index(tensors=joined(all entries), ...))
    each reader:  load(folder, index, shards), which fills the shards' tensors

Invariant: readers get bit for bit what was written, whatever the boxes, and damage is a ValueError before any tensor is
changed (tests/unit/test_shards.py).
"""

import zlib
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from spotlight.compute.weights import download
from spotlight.compute.weights.index import Index, IndexedTensor, TensorBox, overlap
from spotlight.compute.weights.upload import bytes_of

DTYPES = {name: dtype for dtype, name in download.DTYPES.items()}


@dataclass(frozen=True)
class Shard:
    """A box of a tensor."""

    data: Tensor
    offsets: tuple[int, ...]
    """Position of its first number in the whole tensor, by dimension."""
    shape: tuple[int, ...]
    """Shape of the whole tensor."""

    @classmethod
    def whole(cls, tensor: Tensor) -> "Shard":
        return cls(tensor, (0,) * tensor.ndim, tuple(tensor.shape))


def file_of(writer: int) -> str:
    return f"{writer:05d}.safetensors"


def write(path: Path, shards: Mapping[str, Shard]) -> dict[str, IndexedTensor]:
    """Write one writer's file from tensors in host memory; return its part of the index."""
    tensors = {name: shard.data.detach().contiguous() for name, shard in shards.items()}
    entries = {
        name: IndexedTensor(
            dtype=download.dtype_name(name, tensors[name]),
            shape=shard.shape,
            pieces=(TensorBox(path.name, shard.offsets, tuple(tensors[name].shape), _crc32(tensors[name])),),
        )
        for name, shard in shards.items()
    }
    download.write(path, tensors, {})
    return entries


def joined(written: Iterable[Mapping[str, IndexedTensor]]) -> dict[str, IndexedTensor]:
    """Join the index parts of all writers."""
    tensors: dict[str, IndexedTensor] = {}
    for entries in written:
        for name, entry in entries.items():
            before = tensors.get(name, IndexedTensor(entry.dtype, entry.shape, ()))
            tensors[name] = IndexedTensor(entry.dtype, entry.shape, (*before.pieces, *entry.pieces))
    return tensors


def load(folder: Path, index: Index, into: Mapping[str, Shard]) -> None:
    """Fill these boxes; everything is checked before the first write."""
    for name, shard in into.items():
        entry = index.tensors[name]
        if shard.shape != entry.shape or DTYPES.get(entry.dtype) != shard.data.dtype:
            raise ValueError(
                f"{name} is {entry.dtype} of {entry.shape} there, {shard.data.dtype} of {shard.shape} here"
            )
    pieces = _pieces(folder, index, into)
    with torch.no_grad():
        for name, shard in into.items():
            for piece in index.tensors[name].pieces:
                shared = overlap(piece.offsets, piece.shape, shard.offsets, tuple(shard.data.shape))
                if shared is not None:
                    source = pieces[name, piece.file][_within(shared, piece.offsets)]
                    shard.data[_within(shared, shard.offsets)].copy_(source)


def read(folder: Path, index: Index, names: Collection[str]) -> dict[str, Tensor]:
    """Read whole tensors into new memory."""
    shards = {}
    for name in names:
        entry = index.tensors[name]
        if entry.dtype not in DTYPES:
            raise ValueError(f"{name} is of type {entry.dtype}, which is not a type of trained weights")
        shards[name] = Shard.whole(torch.empty(entry.shape, dtype=DTYPES[entry.dtype]))
    load(folder, index, shards)
    return {name: shard.data for name, shard in shards.items()}


def _pieces(folder: Path, index: Index, into: Mapping[str, Shard]) -> dict[tuple[str, str], Tensor]:
    """Map and verify every piece that these boxes need."""
    pieces: dict[tuple[str, str], Tensor] = {}
    with ExitStack() as opened:
        files: dict[str, safe_open] = {}
        for name, shard in into.items():
            for piece in index.tensors[name].pieces:
                if overlap(piece.offsets, piece.shape, shard.offsets, tuple(shard.data.shape)) is None:
                    continue
                try:
                    if piece.file not in files:
                        files[piece.file] = opened.enter_context(safe_open(folder / piece.file, framework="pt"))
                    pieces[name, piece.file] = tensor = files[piece.file].get_tensor(name)
                except (SafetensorError, OSError) as error:
                    raise ValueError(f"{name} cannot be read from {piece.file}: {error}") from error
                if (tuple(tensor.shape), tensor.dtype) != (piece.shape, shard.data.dtype):
                    raise ValueError(f"{name} in {piece.file} has another shape or type than in the index")
                if _crc32(tensor) != piece.crc32:
                    raise ValueError(f"{name} in {piece.file} was altered")
    return pieces


def _within(shared: tuple[slice, ...], offsets: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(part.start - at, part.stop - at) for part, at in zip(shared, offsets, strict=True))


def _crc32(tensor: Tensor) -> int:
    return zlib.crc32(bytes_of(tensor).numpy().data)
