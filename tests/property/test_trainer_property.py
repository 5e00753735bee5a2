"""The accumulated gradient of an update depends on neither the micro-batch nor the order of rows."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import RUN_SEED, grouped_samples, kept_pairs, tiny_adapter, tiny_experience, tiny_sampling
from torch import Tensor

from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.train.config import AlgorithmConfig, FlowGrpoConfig, NftConfig, TrainConfig
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.trainer import Trainer
from spotlight.control.pipeline.tsp import Pair
from spotlight.core.types import SamplerKind, Window

PLACES = 2
ROWS = 8 * PLACES
NFT = NftConfig(kl_weight=0.05, timesteps_per_sample=PLACES)
# A clip of 3e-4 stops some rows of this batch and leaves others.
FLOW = FlowGrpoConfig(kl_weight=0.05, clip=3e-4)
ALGORITHMS = {"nft": NFT, "flow_grpo": FLOW}

orders = st.permutations(range(ROWS))
micro_batches = st.integers(1, ROWS)


def moved_trainer(algorithm: AlgorithmConfig, dtype: torch.dtype) -> tuple[Trainer, Experience]:
    """A trainer whose theta differs from old and reference, so that clipping, KL and both policies matter."""
    adapter = tiny_adapter()
    sampling = (
        tiny_sampling() if isinstance(algorithm, NftConfig) else tiny_sampling(SamplerKind.CPS, Window(0, PLACES))
    )
    experience = tiny_experience(adapter, grouped_samples(sampling))
    adapter.transformer.to(dtype)
    trainer = Trainer(adapter, TrainConfig(), algorithm, RUN_SEED)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in trainer.sets.theta.values():
            parameter.add_(0.003 * torch.randn(parameter.shape, generator=generator))
    return trainer, in_dtype(experience, dtype)


def in_dtype(experience: Experience, dtype: torch.dtype) -> Experience:
    rollout = experience.rollout
    tensors = {name: getattr(rollout, name).to(dtype) for name in ("x0_BSC", "path_BKSC", "log_prob_BK", "mean_BKSC")}
    cond = ConditionBatch(experience.cond.embeds.to(dtype), experience.cond.mask)
    return replace(experience, rollout=replace(rollout, **tensors), cond=cond)


@cache
def case(name: str, dtype: torch.dtype) -> tuple[Trainer, Experience, Tensor]:
    trainer, experience = moved_trainer(ALGORITHMS[name], dtype)
    return trainer, experience, gradient(trainer, experience, kept_pairs(experience, range(8), PLACES), ROWS)


def gradient(trainer: Trainer, experience: Experience, rows: list[Pair], micro_batch: int) -> Tensor:
    """All gradients as one vector, accumulated with this micro-batch."""
    trainer.train_config = TrainConfig(micro_batch=micro_batch)
    trainer.optimizer.zero_grad(set_to_none=True)
    trainer.accumulate(experience, rows, denominator=ROWS)
    grads = [parameter.grad for parameter in trainer.sets.theta.values()]
    return torch.cat([grad.flatten().double() for grad in grads if grad is not None])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=["fp32", "fp64"])
@pytest.mark.parametrize("name", ALGORITHMS)
@settings(max_examples=8)
@given(order=orders, micro_batch=micro_batches)
def test_gradient_of_any_partition_and_order_is_the_same(name, dtype, tolerance, order, micro_batch):
    trainer, experience, whole = case(name, dtype)
    rows = kept_pairs(experience, range(8), PLACES)
    made = gradient(trainer, experience, [rows[i] for i in order], micro_batch)
    assert whole.norm() > 1e-4
    assert (made - whole).norm() / whole.norm() < tolerance


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_term_contributes_to_the_gradient(name):
    """Otherwise the property above could hold for a loss close to zero."""
    trainer, experience, whole = case(name, torch.float32)
    rows = kept_pairs(experience, range(8), PLACES)
    _, figures = trainer.accumulate(experience, rows, ROWS)
    assert figures["kl"] > 1e-7
    if name == "flow_grpo":
        assert 0.1 < figures["clip_fraction"] < 0.9
        assert figures["overflow"] == 0
    else:
        assert figures["drift"] > 1e-7
    half = gradient(trainer, experience, rows[: ROWS // 2], ROWS)
    assert (half - whole).norm() / whole.norm() > 0.1
