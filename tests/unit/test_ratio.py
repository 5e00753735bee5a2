"""Before the first update the importance ratio is 1, through the trainer's own path, however rows are batched."""

from dataclasses import replace

import pytest
import torch
from tiny_models import (
    NOISE_LEVELS,
    RUN_SEED,
    grouped_samples,
    kept_pairs,
    tiny_adapter,
    tiny_experience,
    tiny_sampling,
)

from spotlight.compute.train.config import LOG_PROB_GAP, FlowGrpoConfig, LoraConfig, OldLogProb, TrainConfig
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.objectives import objective
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.weights.digest import fingerprint
from spotlight.control.pipeline.tsp import Pair
from spotlight.core.errors import ConfigError
from spotlight.core.types import SamplerKind, Window

FLOW = SamplerKind.FLOW_SDE
STOCHASTIC = sorted(NOISE_LEVELS)
PLACES = 3
ALGORITHM = FlowGrpoConfig(clip=1e-4, kl_weight=0.1)
LORA = LoraConfig(rank=2, alpha=4.0)


def tiny_trainer(micro_batch: int = 8, checkpointing: bool = False, lora: LoraConfig | None = None) -> Trainer:
    train = TrainConfig(micro_batch=micro_batch, gradient_checkpointing=checkpointing, lora=lora, lr=1e-3)
    return Trainer(tiny_adapter(), train, ALGORITHM, RUN_SEED)


def windowed_experience(trainer: Trainer, kind: SamplerKind, guidance: float = 1.0) -> Experience:
    """Eight samples of four prompts of different lengths, in one batch with two different window starts."""
    samples = grouped_samples(tiny_sampling(kind, Window(0, PLACES), guidance=guidance))
    return tiny_experience(trainer.adapter, samples)


def deviations(trainer: Trainer, experience: Experience, rows: list[Pair], micro_batch: int) -> torch.Tensor:
    """|ratio - 1| of every row, computed as the trainer does: the same objective, model and weight sets."""
    loss = objective(trainer.algorithm, RUN_SEED)
    parts = [
        loss.rows(trainer.adapter, trainer.sets, experience, rows[start : start + micro_batch])
        for start in range(0, len(rows), micro_batch)
    ]
    return torch.cat([part.figures["ratio_deviation"] for part in parts])


@pytest.mark.parametrize(
    ("kind", "checkpointing", "lora"),
    [*((kind, False, None) for kind in STOCHASTIC), (FLOW, True, None), (FLOW, False, LORA)],
)
def test_ratio_before_the_first_update_is_one_for_every_step_and_micro_batch(kind, checkpointing, lora):
    """The replay in the batch of the rollout, below, has every sampler with adapters and checkpoints."""
    trainer = tiny_trainer(checkpointing=checkpointing, lora=lora)
    experience = windowed_experience(trainer, kind)
    assert not experience.cond.mask.all()
    rows = kept_pairs(experience, range(8), PLACES)
    assert len(rows) == 24
    for micro_batch in (1, 3, 8, 24):
        assert deviations(trainer, experience, rows, micro_batch).max() < 1e-6, micro_batch


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_ratio_under_guidance_is_one(kind):
    trainer = tiny_trainer()
    experience = windowed_experience(trainer, kind, guidance=3.0)
    rows = kept_pairs(experience, range(8), PLACES)
    assert deviations(trainer, experience, rows, 3).max() < 1e-6
    # Replayed under another negative prompt it is not 1: the unconditional branch does enter.
    other = replace(experience, uncond=experience.cond.rows(torch.arange(8).roll(2)))
    assert deviations(trainer, other, rows, 3).max() > 1e-5


@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_experience_whose_guidance_and_unconditional_batch_disagree_is_refused(guidance):
    experience = windowed_experience(tiny_trainer(), FLOW, guidance)
    flipped = experience.cond if experience.uncond is None else None
    with pytest.raises(ConfigError, match=f"guidance {guidance} have (no|an) unconditional batch.*pass it"):
        replace(experience, uncond=flipped)


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_normalised_ratio_before_the_first_update_is_one(kind):
    """GRPO-Guard's ratio uses the recorded means, which the plain one never reads."""
    guard = FlowGrpoConfig(clip=2e-6, ratio_normalisation=True)
    trainer = Trainer(tiny_adapter(), TrainConfig(), guard, RUN_SEED)
    experience = windowed_experience(trainer, kind)
    rows = kept_pairs(experience, range(8), PLACES)
    assert deviations(trainer, experience, rows, 3).max() < 1e-6
    other = replace(experience.rollout, mean_BKSC=experience.rollout.mean_BKSC.roll(1, dims=1))
    assert deviations(trainer, replace(experience, rollout=other), rows, 3).max() > 1e-3


@pytest.mark.parametrize(("micro_batch", "checkpointing"), [(1, False), (3, True), (24, False)])
def test_update_reports_a_ratio_of_one_first_and_another_after_a_step(micro_batch, checkpointing):
    trainer = tiny_trainer(micro_batch, checkpointing)
    experience = windowed_experience(trainer, FLOW)
    first = trainer.update(experience, range(8))
    assert first.rows == 24
    assert first.figures["ratio_deviation"] < 1e-6
    assert first.figures["approx_kl"] < 1e-12
    assert first.figures["clip_fraction"] == 0
    # The reference is the policy itself before the first step.
    assert first.figures["kl"] < 1e-10
    second = trainer.update(experience, range(8))
    assert second.figures["ratio_deviation"] > 1e-4
    assert second.figures["kl"] > 1e-8


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("kind", STOCHASTIC)
def test_log_prob_replayed_in_the_batch_of_the_rollout_is_equal_to_the_last_bit(kind, lora):
    trainer = tiny_trainer(checkpointing=True, lora=lora)
    experience = windowed_experience(trainer, kind)
    for place in range(PLACES):
        rows = [Pair(sample, place) for sample in range(8)]
        assert deviations(trainer, experience, rows, 8).tolist() == [0.0] * 8


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_path_rounded_to_bf16_breaks_the_ratio(kind):
    """The negative control: the gate above would notice a trajectory that is stored in half precision."""
    trainer = tiny_trainer()
    experience = windowed_experience(trainer, kind)
    rounded = replace(experience.rollout, path_BKSC=experience.rollout.path_BKSC.bfloat16().float())
    rows = kept_pairs(experience, range(8), PLACES)
    assert deviations(trainer, replace(experience, rollout=rounded), rows, 8).max() > 1e-5


def test_path_shifted_by_one_place_breaks_the_ratio():
    """The gate would notice a window that is replayed at the wrong steps."""
    trainer = tiny_trainer()
    experience = windowed_experience(trainer, FLOW)
    shifted = replace(experience.rollout, path_BKSC=experience.rollout.path_BKSC.roll(1, dims=1))
    rows = kept_pairs(experience, range(8), PLACES)
    assert deviations(trainer, replace(experience, rollout=shifted), rows, 8).min() > 1e-3


def disturbed(experience: Experience) -> Experience:
    """The same samples with log-probs and means that other kernels would have recorded."""
    rollout = experience.rollout
    other = replace(rollout, log_prob_BK=rollout.log_prob_BK + 1e-3, mean_BKSC=rollout.mean_BKSC + 1e-3)
    return replace(experience, rollout=other)


@pytest.mark.parametrize("guard", [False, True], ids=["plain", "guard"])
def test_recomputed_log_probs_make_the_first_ratio_one_and_later_updates_those_of_an_exact_record(guard):
    after = []
    for change in (lambda experience: experience, disturbed):
        config = FlowGrpoConfig(old_log_prob=OldLogProb.RECOMPUTED, ratio_normalisation=guard)
        trainer = Trainer(tiny_adapter(), TrainConfig(micro_batch=8, lr=1e-3), config, RUN_SEED)
        experience = change(windowed_experience(trainer, FLOW))
        first, second = (trainer.update(experience, range(8)) for _ in range(2))
        assert first.figures["ratio_deviation"] == 0
        assert first.figures["clip_fraction"] == 0
        assert second.figures["ratio_deviation"] > 1e-6
        assert LOG_PROB_GAP not in second.figures, "the policy has moved, so there is nothing to compare"
        after.append(
            (fingerprint({name: p.data for name, p in trainer.sets.theta.items()}), first.figures[LOG_PROB_GAP])
        )
        trainer.end_iteration()
        assert trainer.update(experience, range(8)).figures["ratio_deviation"] == 0
    (exact, no_gap), (same, gap) = after
    assert exact == same
    assert no_gap < 1e-6
    assert gap == pytest.approx(1e-3, rel=0.01)


def test_recorded_log_probs_of_other_kernels_clip_rows_and_the_gap_is_reported():
    trainer = tiny_trainer()
    report = trainer.update(disturbed(windowed_experience(trainer, FLOW)), range(8))
    assert report.figures["clip_fraction"] > 0
    assert report.figures[LOG_PROB_GAP] == pytest.approx(1e-3, rel=0.01)
    assert report.figures[LOG_PROB_GAP] > ALGORITHM.gap_allowed(on_gpu=False)


def test_gpus_recompute_and_cpus_take_the_record_unless_told_otherwise():
    assert [FlowGrpoConfig().recomputes(on_gpu) for on_gpu in (True, False)] == [True, False]
    fixed = FlowGrpoConfig(old_log_prob=OldLogProb.RECORDED)
    assert not fixed.recomputes(on_gpu=True)
    assert fixed.gap_allowed(on_gpu=True) == fixed.clip
