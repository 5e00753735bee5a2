"""Checkpoints: a restored trainer continues bit for bit like one that was never stopped."""

from pathlib import Path

import pytest
import torch
from engine_stories import BASE_DIGEST
from test_trainer import FLOW, GROUPS, LORA, NFT, experience_for, theta_of, tiny_trainer

from spotlight.compute.train import checkpoint
from spotlight.compute.train.config import NftConfig, OldDecay
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.compute.weights.digest import digest
from spotlight.core.errors import Stopped, WeightsError


@pytest.mark.parametrize(("algorithm", "lora"), [(NFT, None), (NFT, LORA), (FLOW, None)])
def test_restored_trainer_goes_on_to_the_same_bits(algorithm, lora, tmp_path: Path):
    undisturbed = tiny_trainer(algorithm, lora=lora)
    experience = experience_for(undisturbed)
    undisturbed.run_iteration(experience, GROUPS)
    checkpoint.save(undisturbed, tmp_path / "step_2", BASE_DIGEST)

    restored = tiny_trainer(algorithm, lora=lora)
    checkpoint.restore(restored, tmp_path / "step_2")
    assert digest(theta_of(restored)) == digest(theta_of(undisturbed))
    for trainer in (undisturbed, restored):
        trainer.run_iteration(experience, GROUPS)
    assert digest(theta_of(restored)) == digest(theta_of(undisturbed))
    assert digest(restored.sets[WeightSet.EMA]) == digest(undisturbed.sets[WeightSet.EMA])


def test_step_count_of_the_schedules_is_part_of_the_checkpoint(tmp_path: Path):
    """The average warms up and the behaviour policy follows a ramp from where they were, also if steps are undone."""
    trainer = tiny_trainer(NftConfig(old_decay=OldDecay.RAMP))
    experience = experience_for(trainer)
    trainer.updates.fill_(200)
    trainer.run_iteration(experience, GROUPS)
    checkpoint.save(trainer, tmp_path / "step_202", BASE_DIGEST)
    copied = checkpoint.state_copy(trainer)
    trainer.run_iteration(experience, GROUPS)
    sets = [digest(trainer.sets[which]) for which in (WeightSet.OLD, WeightSet.EMA)]

    for go_back, state in ((checkpoint.restore, tmp_path / "step_202"), (checkpoint.load_copy, copied)):
        go_back(trainer, state)
        assert int(trainer.updates) == 202
        trainer.run_iteration(experience, GROUPS)
        assert [digest(trainer.sets[which]) for which in (WeightSet.OLD, WeightSet.EMA)] == sets
        assert int(trainer.updates) == 204


def test_optimizer_moments_are_part_of_the_checkpoint(tmp_path: Path):
    trainer = tiny_trainer()
    experience = experience_for(trainer)
    trainer.run_iteration(experience, GROUPS)
    checkpoint.save(trainer, tmp_path / "step_2", BASE_DIGEST)
    forgetful = tiny_trainer()
    checkpoint.restore(forgetful, tmp_path / "step_2")
    for moments in filter(None, forgetful.optimizer.state.values()):
        moments["exp_avg"].zero_()
    for each in (trainer, forgetful):
        each.run_iteration(experience, GROUPS)
    assert digest(theta_of(forgetful)) != digest(theta_of(trainer))


def test_half_written_checkpoint_does_not_count(tmp_path: Path):
    trainer = tiny_trainer()
    checkpoint.save(trainer, tmp_path / "step_2", BASE_DIGEST)
    (tmp_path / "step_2").rename(tmp_path / "step_2.part")
    with pytest.raises(WeightsError, match="step_2 does not exist"):
        checkpoint.restore(trainer, tmp_path / "step_2")
    checkpoint.save(trainer, tmp_path / "step_2", BASE_DIGEST)
    checkpoint.restore(trainer, tmp_path / "step_2")


def test_damaged_or_foreign_checkpoint_is_refused_with_a_sentence(tmp_path: Path):
    trainer = tiny_trainer()
    checkpoint.save(trainer, tmp_path / "step_2", BASE_DIGEST)
    with pytest.raises(WeightsError, match="damaged or of another recipe"):
        checkpoint.restore(tiny_trainer(lora=LORA), tmp_path / "step_2")
    for file in (tmp_path / "step_2").glob("*.safetensors"):
        file.write_bytes(b"")
    before = {name: tensor.clone() for name, tensor in theta_of(trainer).items()}
    with pytest.raises(WeightsError, match="damaged or of another recipe"):
        checkpoint.restore(trainer, tmp_path / "step_2")
    assert all(torch.equal(before[name], tensor) for name, tensor in theta_of(trainer).items())


def test_checkpoint_that_cannot_be_written_stops_resumably_and_leaves_the_one_before(tmp_path: Path, monkeypatch):
    trainer = tiny_trainer()
    checkpoint.save(trainer, tmp_path / "step_2", BASE_DIGEST)

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.shards, "write", full)
    with pytest.raises(Stopped, match=r"step_4 cannot be written .*No space left.*free some space"):
        checkpoint.save(trainer, tmp_path / "step_4", BASE_DIGEST)
    assert [path.name for path in tmp_path.iterdir()] == ["step_2"]


@pytest.mark.parametrize(("algorithm", "lora"), [(NFT, LORA), (FLOW, None)])
def test_snapshot_keeps_its_step_though_training_goes_on_before_it_is_written(algorithm, lora, tmp_path: Path):
    trainer = tiny_trainer(algorithm, lora=lora)
    experience = experience_for(trainer)
    trainer.run_iteration(experience, GROUPS)
    then = digest(theta_of(trainer))
    taken = checkpoint.snapshot(trainer, BASE_DIGEST)
    trainer.run_iteration(experience, GROUPS)
    checkpoint.write(taken, tmp_path / "step_2")

    restored = tiny_trainer(algorithm, lora=lora)
    checkpoint.restore(restored, tmp_path / "step_2")
    assert digest(theta_of(restored)) == then != digest(theta_of(trainer))
    restored.run_iteration(experience, GROUPS)
    assert digest(theta_of(restored)) == digest(theta_of(trainer))
    assert digest(restored.sets[WeightSet.EMA]) == digest(trainer.sets[WeightSet.EMA])


def test_leftovers_of_a_killed_writer_are_swept_by_the_next_checkpoint(tmp_path: Path):
    (tmp_path / "step_2.part").mkdir()
    (tmp_path / "step_2.part" / "00000.safetensors").write_bytes(b"half")
    checkpoint.save(tiny_trainer(), tmp_path / "step_4", BASE_DIGEST)
    assert [path.name for path in tmp_path.iterdir()] == ["step_4"]
