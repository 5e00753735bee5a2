"""Checkpoints in pieces: read as written whatever the numbers of writers and readers, and refused when damaged."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from spotlight.compute.weights import shards
from spotlight.compute.weights.index import FILE, Index, read_index, write_index
from spotlight.compute.weights.shards import Shard
from spotlight.core.errors import WeightsError

SHAPES = st.lists(st.integers(0, 6), max_size=3).map(tuple)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int64])
RANKS = st.integers(1, 4)


def cut(tensor: Tensor, dimension: int, ranks: int) -> list[Shard]:
    """A tensor as each of several ranks holds it: even rows of one dimension, the last ranks may have none."""
    if tensor.ndim == 0:
        return [Shard.whole(tensor)]
    dimension %= tensor.ndim
    each, whole = math.ceil(tensor.shape[dimension] / ranks) or 1, Shard.whole(tensor)
    parts = []
    for start in range(0, tensor.shape[dimension], each):
        offsets = tuple(start if d == dimension else 0 for d in range(tensor.ndim))
        parts.append(
            Shard(tensor.narrow(dimension, start, min(each, tensor.shape[dimension] - start)), offsets, whole.shape)
        )
    return parts or [whole]


def written(folder: Path, tensors: dict[str, Tensor], dimension: int = 0, ranks: int = 1) -> Index:
    """A checkpoint by several writers; returns its index as it is read back."""
    pieces = {name: cut(tensor, dimension, ranks) for name, tensor in tensors.items()}
    by_rank = [{name: held[rank] for name, held in pieces.items() if rank < len(held)} for rank in range(ranks)]
    entries = [shards.write(folder / shards.file_of(rank), held) for rank, held in enumerate(by_rank)]
    write_index(folder, Index(family="tiny", base_digest="b", tensors=shards.joined(entries)))
    return read_index(folder)


@settings(max_examples=60)
@given(
    described=st.dictionaries(st.text(min_size=1, max_size=6), st.tuples(SHAPES, DTYPES), max_size=4),
    cuts=st.tuples(st.integers(0, 2), RANKS, st.integers(0, 2), RANKS),
)
def test_any_number_of_readers_reads_the_bits_of_any_number_of_writers(tmp_path_factory, described, cuts):
    folder = tmp_path_factory.mktemp("checkpoint")
    tensors = {
        name: (torch.randn(shape) * 100).to(dtype)
        for name, (shape, dtype) in described.items()
        if name != "__metadata__"
    }
    write_dimension, writers, read_dimension, readers = cuts
    index = written(folder, tensors, write_dimension, writers)
    for name, tensor in tensors.items():
        for part in cut(tensor, read_dimension, readers):
            mine = Shard(torch.empty_like(part.data), part.offsets, part.shape)
            shards.load(folder, index, {name: mine})
            assert torch.equal(mine.data, part.data)
    whole = shards.read(folder, index, list(tensors))
    assert all(
        torch.equal(whole[name], tensor) and whole[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )


def test_step_of_an_optimizer_is_a_tensor_without_dimensions_and_comes_back(tmp_path):
    index = written(tmp_path, {"adamw.step": torch.tensor(7.0), "w": torch.ones(2)})
    target = torch.tensor(0.0)
    shards.load(tmp_path, index, {"adamw.step": Shard.whole(target)})
    assert target == 7.0


@pytest.mark.parametrize("place", ["first", "last"])
def test_altered_byte_is_found_before_any_tensor_is_changed(tmp_path, place):
    tensors = {"a": torch.arange(6.0), "b": torch.arange(6.0, 12.0)}
    index = written(tmp_path, tensors, ranks=2)
    path = tmp_path / shards.file_of(1)
    data = bytearray(path.read_bytes())
    data[8 + int.from_bytes(data[:8], "little") if place == "first" else -1] ^= 1
    path.write_bytes(data)
    into = {name: torch.zeros(6) for name in tensors}
    with pytest.raises(ValueError, match=r"00001\.safetensors was altered"):
        shards.load(tmp_path, index, {name: Shard.whole(tensor) for name, tensor in into.items()})
    assert all(not tensor.any() for tensor in into.values())


@pytest.mark.parametrize("damage", [b"", b"half", None], ids=["empty", "not safetensors", "gone"])
def test_file_that_is_missing_or_of_another_format_is_named(tmp_path, damage):
    index = written(tmp_path, {"a": torch.ones(4)}, ranks=2)
    path = tmp_path / shards.file_of(1)
    path.unlink() if damage is None else path.write_bytes(damage)
    with pytest.raises(ValueError, match=r"a cannot be read from 00001\.safetensors"):
        shards.read(tmp_path, index, ["a"])


def test_tensor_of_another_shape_or_type_is_refused(tmp_path):
    index = written(tmp_path, {"a": torch.ones(4)})
    for target in (torch.zeros(5), torch.zeros(4, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"a is F32 of \(4,\) there"):
            shards.load(tmp_path, index, {"a": Shard.whole(target)})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda tensor: tensor["pieces"].pop(), "a piece missing"),
        (lambda tensor: tensor["pieces"].append(tensor["pieces"][0]), "two pieces for one place"),
        (lambda tensor: tensor["pieces"][1].update(offsets=[1]), "two pieces for one place"),
        (lambda tensor: tensor["pieces"][1].update(offsets=[9]), "outside of"),
        (lambda tensor: tensor["pieces"][1].update(offsets=[-2]), "int"),
        (lambda tensor: tensor["pieces"][1].update(file="../../00001.safetensors"), "matching regex"),
        (lambda tensor: tensor.update(more=1), "unknown field"),
    ],
)
def test_index_that_does_not_add_up_is_refused(tmp_path, change, problem):
    """The index may come from another party."""
    written(tmp_path, {"a": torch.ones(4)}, ranks=2)
    index = json.loads((tmp_path / FILE).read_text())
    change(index["tensors"]["a"])
    (tmp_path / FILE).write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=rf"cannot be read .*{problem}.*damaged or of another version"):
        read_index(tmp_path)


def test_index_names_the_averaged_weights_by_their_bits_and_their_base(tmp_path):
    names = set()
    for number, (value, moment, base) in enumerate(
        [(1.0, 1.0, "b"), (2.0, 1.0, "b"), (1.0, 1.0, "c"), (1.0, 2.0, "b")]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        index = written(folder, {"ema.w": torch.full((2,), value), "adamw.exp_avg.w": torch.full((2,), moment)})
        names.add(Index(family="tiny", base_digest=base, tensors=index.tensors).identity())
    assert len(names) == 3, "the optimizer's moments are no part of it"
