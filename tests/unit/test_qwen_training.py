"""Qwen-Image's adapter through the real rollout and trainer: exact replay at another text width, and one update."""

from dataclasses import replace

import pytest
import torch
from tiny_models import kept_pairs
from tiny_qwen_image import conditioning, tiny_qwen_adapter

from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.models.qwen_image import QwenImageAdapter
from spotlight.compute.rollout.denoise import roll_out
from spotlight.compute.train.config import AlgorithmConfig, FlowGrpoConfig, LoraConfig, NftConfig, TrainConfig
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.objectives import objective
from spotlight.compute.train.trainer import Trainer
from spotlight.core.types import NO_WINDOW, PromptId, Sample, SamplerKind, Sampling, Size, Version, Window

RUN_SEED = 7
SIZE = Size(64, 96)
STEPS = 6
WINDOW_SIZE = 3
NOISE_LEVELS = {SamplerKind.FLOW_SDE: 1.2, SamplerKind.DANCE_SDE: 0.3, SamplerKind.CPS: 0.8}
# Two samples of each of two prompts, so that the masks of a batch differ.
PROMPT_TOKENS = (9, 9, 23, 23)
NEGATIVE_TOKENS = 3
ROLLOUT_WIDTH = 48
# From 48 to 96 a CPU sums in the same order and no bit moves; to 192 it does not.
REPLAY_WIDTHS = (96, 192)
LORA = LoraConfig(rank=2, alpha=4.0)


def tiny_trainer(algorithm: AlgorithmConfig, lora: LoraConfig | None = LORA) -> Trainer:
    train = TrainConfig(lr=1e-3, micro_batch=3, gradient_checkpointing=True, lora=lora)
    return Trainer(tiny_qwen_adapter(), train, algorithm, RUN_SEED)


def samples_of(kind: SamplerKind, guidance: float) -> list[Sample]:
    """Groups of two with one window each; the second group's starts a step later."""
    samples = []
    for index, tokens in enumerate(PROMPT_TOKENS):
        window = NO_WINDOW if kind is SamplerKind.ODE else Window(index // 2, WINDOW_SIZE)
        sampling = Sampling(
            steps=STEPS,
            size=SIZE,
            sampler=kind,
            noise_level=NOISE_LEVELS.get(kind, 0.0),
            window=window,
            guidance=guidance,
        )
        samples.append(Sample(prompt=PromptId(f"p{tokens}"), seed=index, sampling=sampling, version=Version(0)))
    return samples


def collated(adapter: QwenImageAdapter, guidance: float, width: int) -> tuple[ConditionBatch, ConditionBatch | None]:
    cond = adapter.collate([conditioning(tokens, tokens) for tokens in PROMPT_TOKENS], width=width)
    if guidance == 1.0:
        return cond, None
    return cond, adapter.collate([conditioning(NEGATIVE_TOKENS, 0)] * len(PROMPT_TOKENS), width=width)


def experience_of(
    trainer: Trainer, kind: SamplerKind, guidance: float = 1.0, replay_width: int = REPLAY_WIDTHS[0]
) -> Experience:
    """Rolled out at one text width, to be trained on at another."""
    samples = samples_of(kind, guidance)
    rollout = roll_out(trainer.adapter, samples, *collated(trainer.adapter, guidance, ROLLOUT_WIDTH), RUN_SEED)
    cond, uncond = collated(trainer.adapter, guidance, replay_width)
    return Experience(
        rollout=rollout,
        cond=cond,
        uncond=uncond,
        advantage_B=torch.tensor([1.0, -0.5, 0.7, -1.2]),
        kept_B=torch.ones(len(samples), dtype=torch.bool),
        iteration=0,
    )


def stir_adapters(trainer: Trainer) -> None:
    """Adapters start as the identity, which would hide them from the comparison."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in trainer.sets.theta.values():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))


def deviations(trainer: Trainer, experience: Experience) -> torch.Tensor:
    """|ratio - 1| of every row, with gradients on: that is when blocks are checkpointed."""
    rows = kept_pairs(experience, range(len(experience)), WINDOW_SIZE)
    made = objective(trainer.algorithm, RUN_SEED).rows(trainer.adapter, trainer.sets, experience, rows)
    assert made.loss_B.requires_grad
    return made.figures["ratio_deviation"].detach()


@pytest.mark.parametrize("width", REPLAY_WIDTHS)
@pytest.mark.parametrize("guidance", [1.0, 4.0])
@pytest.mark.parametrize("kind", sorted(NOISE_LEVELS))
def test_ratio_replayed_at_a_wider_bucket_is_one(kind, guidance, width):
    trainer = tiny_trainer(FlowGrpoConfig())
    stir_adapters(trainer)
    experience = experience_of(trainer, kind, guidance, width)
    assert trainer.adapter.transformer.is_gradient_checkpointing
    assert experience.cond.mask.shape[1] == width > ROLLOUT_WIDTH
    assert deviations(trainer, experience).max() < 1e-6
    # The gate would notice padding that is seen, and adapters that are not the rollout's.
    blind = replace(experience, cond=ConditionBatch(experience.cond.embeds, torch.ones_like(experience.cond.mask)))
    assert deviations(trainer, blind).max() > 1e-5
    stir_adapters(trainer)
    assert deviations(trainer, experience).max() > 1e-5


def test_flow_grpo_update_reports_a_ratio_of_one_before_its_first_step_and_another_after():
    trainer = tiny_trainer(FlowGrpoConfig(kl_weight=0.1))
    experience = experience_of(trainer, SamplerKind.FLOW_SDE)
    first, second = (trainer.update(experience, range(len(experience))) for _ in range(2))
    assert first.rows == len(PROMPT_TOKENS) * WINDOW_SIZE
    assert first.figures["ratio_deviation"] < 1e-6
    assert first.figures["clip_fraction"] == 0
    assert first.grad_norm > 0
    assert second.figures["ratio_deviation"] > 1e-6


@pytest.mark.parametrize("guidance", [1.0, 4.0])
@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_nft_update_changes_theta_and_keeps_the_base_under_lora(lora, guidance):
    trainer = tiny_trainer(NftConfig(), lora)
    experience = experience_of(trainer, SamplerKind.ODE, guidance)
    before = {name: p.detach().clone() for name, p in trainer.adapter.transformer.named_parameters()}
    report = trainer.update(experience, range(len(experience)))
    after = dict(trainer.adapter.transformer.named_parameters())
    changed = {name for name, value in before.items() if not torch.equal(after[name], value)}
    assert report.grad_norm > 0
    assert report.figures["drift"] == 0
    assert changed <= set(trainer.sets.theta)
    assert {name for name in trainer.sets.theta if name.startswith("transformer_blocks.0.")} <= changed
    if lora is None:
        assert set(trainer.sets.theta) == set(before)
    else:
        assert all(".lora_A." in name or ".lora_B." in name for name in trainer.sets.theta)
        assert len(trainer.sets.theta) == 2 * 2 * len(trainer.adapter.lora_targets)
