"""The index of a checkpoint, in JSON; free of torch, so that the controller can read it.

    step_000060/checkpoint.json        this index
               /00000.safetensors      the tensors of the first writer, 00001 of the second, ...

A tensor may be cut into boxes that lie in the files of several writers; the index gives the whole tensor's shape and
where each box begins, so that any number of readers can take other boxes. Every box has a CRC-32: it finds damage, not
malice. Nothing here or in the files is a pickle.
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
"""The file that checkpoints of earlier versions had instead; it is a pickle and is never opened."""
EMA = "ema."
"""Prefix of the averaged weights, which stand for a checkpoint where weights are asked for."""

Count: TypeAlias = Annotated[int, Meta(ge=0)]
Counts: TypeAlias = tuple[Count, ...]
FileName: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9]{5}\.safetensors$")]


class TensorBox(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One box of a tensor, under the tensor's name in one of the files."""

    file: FileName
    offsets: Counts
    """Of its first number in the whole tensor, by dimension."""
    shape: Counts
    crc32: Count


class IndexedTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor."""

    dtype: str
    """As safetensors spells it."""
    shape: Counts
    pieces: tuple[TensorBox, ...]


class Index(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything but the numbers."""

    format: int = FORMAT
    family: str
    base_digest: str
    """Of the weights that the run trains from: what a LoRA run does not hold is theirs."""
    tensors: dict[str, IndexedTensor]

    @property
    def has_adapters(self) -> bool:
        return holds_adapters(self.tensors)

    def averaged(self) -> list[str]:
        """Names of the averaged weights, as they are in the files."""
        return sorted(name for name in self.tensors if name.startswith(EMA))

    def identity(self) -> str:
        """Name of the averaged weights and their base, from the checksums."""
        hasher = hashlib.blake2b(self.base_digest.encode(), digest_size=16)
        for name in self.averaged():
            hasher.update(msgspec.json.encode((name, self.tensors[name])))
        return hasher.hexdigest()


def write_index(folder: Path, index: Index) -> None:
    (folder / FILE).write_bytes(msgspec.json.encode(index))


def is_checkpoint(folder: Path) -> bool:
    """Also where its format is not read any more."""
    return (folder / FILE).is_file() or (folder / PICKLED).is_file()


def read_index(folder: Path) -> Index:
    """Checked: every tensor is made of boxes that fill it, each of which is in a file beside the index."""
    path = folder / FILE
    if not path.is_file() and (folder / PICKLED).is_file():
        raise WeightsError(
            f"the checkpoint {folder} is in the format of an earlier version, whose {PICKLED} is a pickle, and a "
            f"pickle can run any code when it is opened; {recovery_hint(folder)}."
        )
    if not path.is_file():
        raise WeightsError(
            f"the checkpoint {folder} does not exist or has no {FILE}; put it back, or {recovery_hint(folder)}."
        )
    try:
        index = msgspec.json.decode(path.read_bytes(), type=Index)
        if index.format != FORMAT:
            raise ValueError(f"it is of format {index.format}, and this version reads format {FORMAT}")
        for name, entry in index.tensors.items():
            _check_filled(name, entry)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise WeightsError(
            f"the checkpoint {folder} cannot be read ({error}), so it is damaged or of another version; put it back, "
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
    """What two boxes share, in coordinates of the whole tensor; None where it is nothing."""
    shared = tuple(
        slice(max(a, b), min(a + n, b + m)) for a, n, b, m in zip(offsets, shape, others, other_shape, strict=True)
    )
    return shared if all(part.start < part.stop for part in shared) else None
