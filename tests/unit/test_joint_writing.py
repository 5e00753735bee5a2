"""A checkpoint that several ranks write: a folder that rank 0 gave up is abandoned by the others, not an error."""

import shutil
import weakref
from pathlib import Path

import pytest
import torch
from tiny_models import tiny_adapter

from spotlight.compute.train.joint_writing import JointWriter
from spotlight.compute.train.training_effects import CheckpointAbandoned
from spotlight.compute.weights.resident import Resident


def writer(rank: int) -> JointWriter:
    return JointWriter(rank, ranks=2, gang="1-abcd", number=0, is_open=lambda: True)


def test_rank_whose_folder_is_removed_by_rank_0_abandons_the_checkpoint(tmp_path: Path) -> None:
    """Rank 0 may see the gang break before this rank does."""
    folder = tmp_path / "checkpoints" / "step_000004"
    second = writer(1)

    def write(path: Path) -> dict[str, object]:
        shutil.rmtree(second.scratch(folder))
        path.write_bytes(b"tensors")
        return {}

    with pytest.raises(CheckpointAbandoned):
        second.write_part(folder, write)  # type: ignore[arg-type]


def test_full_disk_is_still_an_error_of_the_rank_that_meets_it(tmp_path: Path) -> None:
    def full(path: Path) -> dict[str, object]:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        writer(1).write_part(tmp_path / "step_000004", full)  # type: ignore[arg-type]


def test_released_resident_keeps_no_parameter_of_the_model_alive() -> None:
    """FSDP2 frees a whole parameter with its last reference."""
    module = tiny_adapter().transformer
    resident = Resident(module, "base")
    name, parameter = next(iter(module.named_parameters()))
    known = weakref.ref(parameter)
    owner, _, attribute = name.rpartition(".")
    setattr(module.get_submodule(owner), attribute, torch.nn.Parameter(torch.zeros(1)))
    del parameter
    assert known() is not None
    resident.release()
    assert known() is None
