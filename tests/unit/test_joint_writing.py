"""Several writers of one checkpoint: rank 0 completes it when all parts of this checkpoint are there."""

import threading
from pathlib import Path

import pytest
import torch

from spotlight.compute.train import joint_writing
from spotlight.compute.train.boxes import owners
from spotlight.compute.train.joint_writing import CheckpointAbandoned, JointWriter
from spotlight.compute.weights import shards
from spotlight.compute.weights.shards import Shard


def writer(rank: int, number: int = 0, gang: str = "1-aa", is_open: bool = True) -> JointWriter:
    return JointWriter(rank, 2, gang, number, lambda: is_open)


def tensor_of(rank: int):
    return lambda path: shards.write(path, {f"t{rank}": Shard.whole(torch.full((2,), float(rank)))})


def test_rank_0_waits_for_all_parts(tmp_path: Path):
    folder = tmp_path / "step_2"
    writer(0).write_part(folder, tensor_of(0))
    later = threading.Timer(0.2, lambda: writer(1).write_part(folder, tensor_of(1)))
    later.start()
    parts = writer(0).parts(folder)
    assert [sorted(part) for part in parts] == [["t0"], ["t1"]]
    left = sorted(path.name for path in writer(0).scratch(folder).iterdir())
    assert left == ["00000.safetensors", "00001.safetensors"]


@pytest.mark.parametrize("earlier", [writer(1, number=0), writer(1, number=1, gang="1-bb")], ids=["number", "gang"])
def test_part_of_an_earlier_checkpoint_does_not_count(earlier, tmp_path: Path):
    folder = tmp_path / "step_2"
    earlier.write_part(folder, tensor_of(1))
    writer(0, number=1, is_open=False).write_part(folder, tensor_of(0))
    with pytest.raises(CheckpointAbandoned, match=r"ranks \[1\] had not written"):
        writer(0, number=1, is_open=False).parts(folder)
    assert not earlier.scratch(folder).exists()


def test_part_of_a_later_checkpoint_of_the_gang_is_not_swept(tmp_path: Path):
    later = writer(1, number=5)
    later.write_part(tmp_path / "step_4", tensor_of(1))
    writer(0, number=4).write_part(tmp_path / "step_2", tensor_of(0))
    assert later.scratch(tmp_path / "step_4").exists()


def test_rank_that_cannot_write_ends_the_wait_of_rank_0(tmp_path: Path):
    folder = tmp_path / "step_2"

    def full(path: Path):
        raise OSError(28, "No space left on device")

    writer(0).write_part(folder, tensor_of(0))
    with pytest.raises(OSError, match="No space left"):
        writer(1).write_part(folder, full)
    with pytest.raises(OSError, match=r"rank 1 could not write its part: .*No space left"):
        writer(0).parts(folder)


def test_rank_that_never_writes_ends_the_wait_at_its_limit(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(joint_writing, "PART_LIMIT_S", 0.1)
    folder = tmp_path / "step_2"
    writer(0).write_part(folder, tensor_of(0))
    with pytest.raises(OSError, match=r"ranks \[1\] did not write their parts within 0.1 s"):
        writer(0).parts(folder)


def test_error_after_the_gang_broke_is_no_failure(tmp_path: Path):
    def gone(path: Path):
        raise FileNotFoundError(path)

    with pytest.raises(CheckpointAbandoned):
        writer(1, is_open=False).write_part(tmp_path / "step_2", gone)


def test_tensors_are_divided_by_bytes():
    sizes = {f"t{number}": size for number, size in enumerate((100, 90, 60, 50, 10, 8))}
    owner = owners(sizes, 3)
    loads = [sum(sizes[name] for name in sizes if owner[name] == rank) for rank in range(3)]
    assert sorted(owner) == sorted(sizes)
    assert max(loads) - min(loads) <= 20
