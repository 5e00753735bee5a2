"""Updates in any parts and any batches of rows have the gradient, and leave the weights, of the serial update.

Serial is one part, one row at a time. Samples differ in their number of trained timesteps, one is not kept, the clip
stops some rows and not others, the KL term is on, and half of the samples may be of the version before.
"""

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import PROMPTS, RUN_SEED, conditions, rolled_out, sample_of, tiny_adapter, tiny_sampling
from torch import Tensor

from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.train.checkpoint import load_copy, state_copy
from spotlight.compute.train.config import FlowGrpoConfig, NftConfig, TrainConfig
from spotlight.compute.train.experience import Experience, joined
from spotlight.compute.train.trainer import Trainer, UpdateReport
from spotlight.control.pipeline.tsp import BatchesOver
from spotlight.core.types import SamplerKind, Version, Window

GROUPS = ((0, 1), (2, 3), (4, 5), (6, 7))
WINDOWS = (Window(0, 1), Window(1, 3), Window(0, 2), Window(2, 1))
ROWS = 14
NFT = NftConfig(kl_weight=0.05, timesteps_per_sample=2)
# A clip of 3e-4 stops some rows of these samples and leaves others.
FLOW = FlowGrpoConfig(kl_weight=0.05, clip=3e-4)
CASES = {"nft": (NFT, False), "flow_grpo": (FLOW, False), "nft_stale": (NFT, True), "flow_grpo_stale": (FLOW, True)}
DTYPES = pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float64], ids=["fp32", "fp64"]
)
UNCLIPPED, CLIPPED = 1e6, 0.004
# A large eps: with the usual one AdamW's first update is the sign of the gradient, which amplifies rounding.
TRAIN = TrainConfig(lr=1e-2, optimizer_eps=1e-2, micro_batch=1, batches_over=BatchesOver.SAMPLES)

batch_sizes = st.integers(1, ROWS)
kinds = st.sampled_from(BatchesOver)
norms = st.sampled_from([UNCLIPPED, CLIPPED])


@st.composite
def partitions(draw) -> list[list[int]]:
    """The groups in any order, cut anywhere."""
    order = draw(st.permutations(GROUPS))
    cuts = sorted(draw(st.sets(st.integers(1, len(order) - 1))))
    bounds = [0, *cuts, len(order)]
    return [[sample for group in order[start:stop] for sample in group] for start, stop in pairwise(bounds)]


@dataclass(frozen=True)
class Outcome:
    """Result of one update: its report, the gradients that the optimizer applied, the weights after it."""

    report: UpdateReport
    gradients: dict[str, Tensor]
    theta: dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    trainer: Trainer
    experience: Experience
    start: dict[str, Tensor]

    def step(self, train: TrainConfig, parts: list[list[int]], places: int | None = None) -> Outcome:
        trainer = self.trainer
        load_copy(trainer, self.start)
        trainer.train_config = train
        trainer.begin(len(self.experience), places)
        for part in parts:
            trainer.add(self.experience, part)
        report = trainer.finish(self.experience.iteration)
        gradients = {name: p.grad.double().clone() for name, p in trainer.sets.theta.items() if p.grad is not None}
        return Outcome(report, gradients, {name: p.detach().double().clone() for name, p in trainer.sets.theta.items()})


@cache
def case(name: str, dtype: torch.dtype) -> Case:
    """A trainer whose theta differs from every other set, so that the clip, the KL and both policies matter."""
    algorithm, stale = CASES[name]
    adapter = tiny_adapter()
    experience = ragged_experience(adapter, stochastic=isinstance(algorithm, FlowGrpoConfig), stale=stale)
    adapter.transformer.to(dtype)
    trainer = Trainer(adapter, TRAIN, algorithm, RUN_SEED, keeps_before=stale)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for which in trainer.sets.names:
            for copy in trainer.sets[which].values():
                copy.add_(0.001 * torch.randn(copy.shape, generator=generator))
        for parameter in trainer.sets.theta.values():
            parameter.add_(0.003 * torch.randn(parameter.shape, generator=generator))
        if "clip_fractions" in trainer.objective_state:
            trainer.objective_state["clip_fractions"].copy_(torch.tensor([0.1, 0.9]))
    return Case(trainer, in_dtype(experience, dtype), state_copy(trainer))


def ragged_experience(adapter, stochastic: bool, stale: bool) -> Experience:
    """Groups of two whose windows differ in length; every other group is of the version before where `stale`."""
    samples = []
    for group, prompt in enumerate(PROMPTS):
        sampling = tiny_sampling(SamplerKind.CPS, WINDOWS[group]) if stochastic else tiny_sampling()
        version = Version(group % 2 if stale else 0)
        samples.append([msgspec.structs.replace(sample_of(prompt, seed, sampling), version=version) for seed in (0, 1)])
    flat = [sample for group in samples for sample in group]
    return Experience(
        rollout=joined([rolled_out(adapter, group) for group in samples]),
        cond=conditions(adapter, flat),
        uncond=None,
        advantage_B=torch.tensor([(-1.0) ** index * (0.3 + 0.1 * index) for index in range(len(flat))]),
        kept_B=torch.tensor([index != 4 for index in range(len(flat))]),
        iteration=1 if stale else 0,
    )


def in_dtype(experience: Experience, dtype: torch.dtype) -> Experience:
    rollout = experience.rollout
    tensors = {name: getattr(rollout, name).to(dtype) for name in ("x0_BSC", "path_BKSC", "log_prob_BK", "mean_BKSC")}
    cond = ConditionBatch(experience.cond.embeds.to(dtype), experience.cond.mask)
    return replace(experience, rollout=replace(rollout, **tensors), cond=cond)


def places_of(name: str) -> int:
    """Rows of all samples, kept or not."""
    return ROWS if name.startswith("flow_grpo") else 8 * NFT.timesteps_per_sample


@cache
def serial(name: str, dtype: torch.dtype, max_grad_norm: float) -> Outcome:
    train = TRAIN.model_copy(update={"max_grad_norm": max_grad_norm})
    return case(name, dtype).step(train, [list(range(8))])


def assert_equal(made: Outcome, wanted: Outcome, dtype: torch.dtype) -> None:
    assert made.report.rows == wanted.report.rows
    assert made.report.loss == pytest.approx(wanted.report.loss, rel=1e-6)
    for found, expected in ((made.gradients, wanted.gradients), (made.theta, wanted.theta)):
        assert found.keys() == expected.keys()
        if dtype is torch.float64:
            for name in expected:
                assert (found[name] - expected[name]).norm() <= 1e-12 * expected[name].norm(), name
        else:
            whole, other = (torch.cat([value.flatten() for value in each.values()]) for each in (expected, found))
            assert (other - whole).norm() < 1e-6 * whole.norm()


@pytest.mark.parametrize("name", ["flow_grpo", "flow_grpo_stale"])
@settings(max_examples=5)
@given(parts=partitions(), micro_batch=batch_sizes, max_grad_norm=norms)
def test_step_whose_later_parts_have_more_rows_than_the_first_is_the_serial_one(
    name, parts, micro_batch, max_grad_norm
):
    """The number of rows is not given in advance. Only in fp32: the scaling between parts rounds to fp32."""
    train = TRAIN.model_copy(update={"max_grad_norm": max_grad_norm, "micro_batch": micro_batch})
    made = case(name, torch.float32).step(train, parts)
    assert_equal(made, serial(name, torch.float32, max_grad_norm), torch.float32)


@DTYPES
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=5)
@given(parts=partitions(), micro_batch=batch_sizes, over=kinds, max_grad_norm=norms)
def test_step_in_any_parts_and_any_batches_is_the_serial_one(name, dtype, parts, micro_batch, over, max_grad_norm):
    train = TRAIN.model_copy(update={"max_grad_norm": max_grad_norm, "micro_batch": micro_batch, "batches_over": over})
    made = case(name, dtype).step(train, parts, places_of(name))
    assert_equal(made, serial(name, dtype, max_grad_norm), dtype)


@pytest.mark.parametrize("name", CASES)
def test_every_term_contributes_to_the_serial_step(name):
    """Otherwise the properties above could hold for a loss close to zero."""
    free, clipped = (serial(name, torch.float64, norm) for norm in (UNCLIPPED, CLIPPED))
    figures = free.report.figures
    assert free.report.grad_norm > 5 * CLIPPED
    assert sum(float(g.square().sum()) for g in clipped.gradients.values()) ** 0.5 == pytest.approx(CLIPPED, rel=1e-3)
    moved = sum(float((clipped.theta[n] - free.theta[n]).square().sum()) for n in free.theta) ** 0.5
    assert moved > 1e-3
    assert figures["kl"] > 1e-7
    if name.startswith("flow_grpo"):
        assert free.report.rows == ROWS - 2
        assert 0.1 < figures["clip_fraction"] < 0.9
    else:
        assert figures["drift"] > 1e-7
    if name.endswith("stale"):
        assert 0.2 < figures["stale_share"] < 0.8
    if name == "flow_grpo_stale":
        assert figures["decoupled_share"] == figures["stale_share"]
    half = case(name, torch.float64).step(TRAIN.model_copy(update={"max_grad_norm": UNCLIPPED}), [[0, 1, 2, 3]])
    assert any((half.gradients[n] - g).norm() > 0.1 * g.norm() for n, g in free.gradients.items())
