"""The index of a checkpoint, in JSON; free of torch, for the controller.

    step_000060/checkpoint.json        this index
               /00000.safetensors      the tensors of the first writer, 00001 of the second, ...

A tensor may be cut into boxes in the files of several writers. The index has the whole tensor's shape and the offsets
of each box, so that any number of readers can read other boxes. Every box has a CRC-32: it detects damage, not malice.
Nothing here or in the files is a pickle.
"""

import hashlib
import itertools
import math
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from spotlight.compute.weights.header import holds_adapters
from spotlight.core.errors import WeightsError

FILE = "checkpoint.json"
FORMAT = 1
PICKLED = ".metadata"
"""Index file of earlier versions; it is a pickle and is never opened."""
EMA = "ema."
"""Prefix of the averaged weights, which are used when a checkpoint is named as a model."""

Count: TypeAlias = Annotated[int, Meta(ge=0)]
Counts: TypeAlias = tuple[Count, ...]
FileName: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9]{5}\.safetensors$")]


class TensorBox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One box of a tensor, under the tensor's name in one of the files."""

    file: FileName
    offsets: Counts
    """Position of its first number in the whole tensor, by dimension."""
    shape: Counts
    crc32: Count


class IndexedTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor and its boxes."""

    dtype: str
    """Safetensors name of the type."""
    shape: Counts
    pieces: tuple[TensorBox, ...]


class Index(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Metadata of a checkpoint."""

    format: int = FORMAT
    family: str
    base_digest: str
    """Digest of the base weights, which supply every tensor that a LoRA run lacks."""
    tensors: dict[str, IndexedTensor]

    @property
    def has_adapters(self) -> bool:
        return holds_adapters(self.tensors)

    def averaged(self) -> list[str]:
        """Names of the averaged weights in the files."""
        return sorted(name for name in self.tensors if name.startswith(EMA))

    def identity(self) -> str:
        """Hash that identifies the averaged weights and their base, from the checksums."""
        hasher = hashlib.blake2b(self.base_digest.encode(), digest_size=16)
        for name in self.averaged():
            hasher.update(msgspec.json.encode((name, self.tensors[name])))
        return hasher.hexdigest()


def write_index(folder: Path, index: Index) -> None:
    (folder / FILE).write_bytes(msgspec.json.encode(index))


def is_checkpoint(folder: Path) -> bool:
    """Whether the folder holds a checkpoint, of this or an earlier format."""
    return (folder / FILE).is_file() or (folder / PICKLED).is_file()


def read_index(folder: Path) -> Index:
    """Read the index and check that the boxes of every tensor fill it."""
    path = folder / FILE
    if not path.is_file() and (folder / PICKLED).is_file():
        raise WeightsError(
            f"the checkpoint {folder} is in the format of an earlier version, whose {PICKLED} is a pickle, and a "
            f"pickle can run any code when it is opened; {recovery_hint(folder)}."
        )
    if not path.is_file():
        raise WeightsError(
            f"the checkpoint {folder} does not exist or has no {FILE}; restore it, or {recovery_hint(folder)}."
        )
    try:
        index = msgspec.json.decode(path.read_bytes(), type=Index)
        if index.format != FORMAT:
            raise ValueError(f"it is of format {index.format}, and this version reads format {FORMAT}")
        for name, entry in index.tensors.items():
            _check_filled(name, entry)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise WeightsError(
            f"the checkpoint {folder} cannot be read ({error}), so it is damaged or of another version; restore it, "
            f"or {recovery_hint(folder)}."
        ) from error
    return index


def recovery_hint(folder: Path) -> str:
    """Advice for a run whose checkpoint cannot be used."""
    run = folder.parent.parent
    return f"start a new run from the weights that this one published, with `spotlight train RECIPE --model.name {run}`"


def _check_filled(name: str, entry: IndexedTensor) -> None:
    for piece in entry.pieces:
        places = zip(piece.offsets, piece.shape, entry.shape, strict=True)
        if not all(offset + size <= whole for offset, size, whole in places):
            raise ValueError(f"{name} has a piece of {piece.shape} at {piece.offsets}, outside of {entry.shape}")
    for one, other in itertools.combinations(entry.pieces, 2):
        if one.file == other.file or overlap(one.offsets, one.shape, other.offsets, other.shape) is not None:
            raise ValueError(f"{name} has two pieces for one place")
    if sum(math.prod(piece.shape) for piece in entry.pieces) != math.prod(entry.shape):
        raise ValueError(f"{name} of {entry.shape} has a piece missing")


def overlap(offsets: Counts, shape: Counts, others: Counts, other_shape: Counts) -> tuple[slice, ...] | None:
    """Overlap of two boxes, in coordinates of the whole tensor; None if they are disjoint."""
    shared = tuple(
        slice(max(a, b), min(a + n, b + m)) for a, n, b, m in zip(offsets, shape, others, other_shape, strict=True)
    )
    return shared if all(part.start < part.stop for part in shared) else None
