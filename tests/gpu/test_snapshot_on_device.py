"""Checkpoints of a trainer on a CUDA device have the state at the snapshot, though the device lags behind the host."""

import threading
from pathlib import Path

import pytest
import torch
from engine_stories import BASE_DIGEST
from test_timestep_batches_on_device import SAMPLES, trained

from spotlight.compute.train import checkpoint
from spotlight.compute.train.config import NftConfig

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
BEHIND_CYCLES = 2_000_000_000
"""About a second of other work on the device."""


@pytest.mark.parametrize("has_room", [True, False], ids=["on its device", "in the host's memory"])
def test_snapshot_behind_queued_work_is_written_unchanged_while_the_trainer_updates_in_place(
    has_room: bool, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(checkpoint, "_has_room", lambda state, device: has_room)
    trainer, experience = trained(NftConfig())
    trainer.update(experience, range(SAMPLES))
    wanted = {name: tensor.cpu() for name, tensor in checkpoint.state_copy(trainer).items()}

    torch.cuda._sleep(BEHIND_CYCLES)
    taken = checkpoint.snapshot(trainer, BASE_DIGEST)
    assert (taken.copied is not None) is has_room
    writing = threading.Thread(target=checkpoint.write, args=(taken, tmp_path / "step_1"))
    writing.start()
    for _ in range(3):
        trainer.update(experience, range(SAMPLES))
    writing.join()

    other, _ = trained(NftConfig())
    checkpoint.restore(other, tmp_path / "step_1")
    found = checkpoint.state_copy(other)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name].cpu(), tensor) for name, tensor in wanted.items())
    assert not torch.equal(next(iter(trainer.sets.theta.values())).cpu(), next(iter(wanted.values())))


def test_snapshot_goes_to_the_host_where_training_needs_the_free_memory(monkeypatch):
    trainer, _ = trained(NftConfig())
    assert checkpoint.snapshot(trainer, BASE_DIGEST).copied is not None
    in_use = torch.cuda.mem_get_info()[1]
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: in_use)
    assert checkpoint.snapshot(trainer, BASE_DIGEST).copied is None
