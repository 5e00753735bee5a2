"""Recomputed blocks: the same gradient bit for bit, as many blocks as set, and only those."""

import pytest
import torch
from pydantic import ValidationError
from tiny_models import RUN_SEED, grouped_samples, tiny_adapter, tiny_experience, tiny_sampling
from tiny_qwen_image import tiny_transformer

from spotlight.compute.memory.choices import TrainingLimits
from spotlight.compute.memory.memory_plan import MemoryPlan
from spotlight.compute.train.config import LoraConfig, NftConfig, TrainConfig
from spotlight.compute.train.recomputation import blocks_of, recompute_first
from spotlight.compute.train.trainer import Trainer


def trainer_with(setting, lora=None, limits=None) -> tuple[Trainer, list[int]]:
    """A trainer, and the number of forwards of each of its two blocks so far."""
    adapter = tiny_adapter()
    counts = [0, 0]

    def counted(index: int):
        def count(*_: object) -> None:
            counts[index] += 1

        return count

    for index, block in enumerate(adapter.transformer.transformer_blocks):
        block.register_forward_pre_hook(counted(index))
    train = TrainConfig(lr=1e-3, micro_batch=4, gradient_checkpointing=setting, lora=lora)
    return Trainer(adapter, train, NftConfig(timesteps_per_sample=1), RUN_SEED, limits=limits), counts


def gradients(trainer: Trainer) -> dict[str, torch.Tensor]:
    experience = tiny_experience(trainer.adapter, grouped_samples(tiny_sampling()))
    trainer.begin(len(experience))
    trainer.add(experience, range(len(experience)))
    return {name: p.grad for name, p in trainer.sets.theta.items() if p.grad is not None}


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2, alpha=4.0)])
@pytest.mark.parametrize("setting", [True, 1, 2, 7, "auto"])
def test_gradient_is_the_same_bit_for_bit_however_many_blocks_are_recomputed(setting, lora):
    plain, recomputed = gradients(trainer_with(False, lora)[0]), gradients(trainer_with(setting, lora)[0])
    assert plain.keys() == recomputed.keys()
    assert all(torch.equal(plain[name], recomputed[name]) for name in plain)


@pytest.mark.parametrize(
    ("setting", "again"), [(False, (0, 0)), (0, (0, 0)), (1, (1, 0)), (2, (1, 1)), (True, (1, 1)), ("auto", (0, 0))]
)
def test_only_the_first_blocks_run_again_in_the_backward(setting, again):
    trainer, counts = trainer_with(setting)
    experience = tiny_experience(trainer.adapter, grouped_samples(tiny_sampling()))
    counts[:] = [0, 0]
    trainer.begin(len(experience))
    trainer.add(experience, range(len(experience)))
    batches = len(experience) // 4
    # Each batch has a forward of the old policy and one of the trained one.
    assert counts == [batches * (2 + more) for more in again]


def test_blocks_of_the_memory_plan_have_priority_over_the_setting():
    limits = TrainingLimits(first=4, most=8, recomputed=1, offloads_vae=False, plan=MemoryPlan("", ()))
    trainer, counts = trainer_with("auto", limits=limits)
    counts[:] = [0, 0]
    gradients(trainer)
    assert counts[0] > counts[1]


def test_blocks_are_those_of_the_forward_in_its_order():
    transformer = tiny_transformer()
    assert blocks_of(transformer) == list(transformer.transformer_blocks)
    recompute_first(transformer, 0)
    assert not transformer.is_gradient_checkpointing


@pytest.mark.parametrize("wrong", [-1, 2.5, "some", None])
def test_value_that_is_no_recomputation_is_refused_with_a_sentence(wrong):
    with pytest.raises(ValidationError, match="true, false, a whole number of blocks, or auto") as refusal:
        TrainConfig.model_validate({"gradient_checkpointing": wrong})
    assert refusal.value.errors()[0]["loc"] == ("gradient_checkpointing",)


def test_true_and_one_are_different_settings():
    assert TrainConfig.model_validate({"gradient_checkpointing": True}).gradient_checkpointing is True
    assert TrainConfig.model_validate({"gradient_checkpointing": 1}).gradient_checkpointing is not True
