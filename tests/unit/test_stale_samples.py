"""Samples of the previous version: what they are compared with, how they are weighted, and when."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from engine_stories import BASE_DIGEST
from test_trainer import GROUPS, LORA, assert_close, gradient_of, theta_of
from tiny_models import RUN_SEED, grouped_samples, tiny_adapter, tiny_experience, tiny_sampling

from spotlight.compute.rollout import samplers
from spotlight.compute.train import checkpoint
from spotlight.compute.train.clip_watch import ClipWatch
from spotlight.compute.train.config import AlgorithmConfig, FlowGrpoConfig, NftConfig, TrainConfig
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.losses.flow_grpo import flow_grpo_loss
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.compute.weights.digest import digest
from spotlight.control.pipeline.staleness import CLIPPED_FRESH, CLIPPED_STALE
from spotlight.core.errors import Stopped, WeightsError
from spotlight.core.types import SamplerKind, Version, Window

NFT = NftConfig(kl_weight=0.01)
# A clip of 1e-4 stops rows whose weights are a little away; wide weights, so that the cap is not in play.
FLOW = FlowGrpoConfig(kl_weight=0.1, clip=1e-4, stale_weight_cap=100.0)
BOTH = pytest.mark.parametrize("algorithm", [NFT, FLOW], ids=["nft", "flow_grpo"])
STALE_SAMPLES = (0, 1, 2, 3)
ITERATION = 1


def trainer_of(algorithm: AlgorithmConfig, keeps_before: bool = True, **train) -> Trainer:
    config = TrainConfig(**{"lr": 1e-3, "micro_batch": 16, "updates_per_iteration": 1, **train})
    return Trainer(tiny_adapter(), config, algorithm, RUN_SEED, keeps_before)


def experience_of(trainer: Trainer, stale: Sequence[int] = STALE_SAMPLES) -> Experience:
    """Samples of iteration 1: version 1, and 0 for the stale ones."""
    stochastic = isinstance(trainer.algorithm, FlowGrpoConfig)
    sampling = tiny_sampling(SamplerKind.FLOW_SDE, Window(0, 2)) if stochastic else tiny_sampling()
    samples = [
        msgspec.structs.replace(sample, version=Version(ITERATION - (number in stale)))
        for number, sample in enumerate(grouped_samples(sampling))
    ]
    return replace(tiny_experience(trainer.adapter, samples), iteration=ITERATION)


def stir(trainer: Trainer, *sets: WeightSet | None, by: float = 0.02, seed: int = 1) -> None:
    """Move these weight sets away from their values; None is theta."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for which in sets:
            for tensor in (trainer.sets.theta if which is None else trainer.sets[which]).values():
                tensor.add_(by * torch.randn(tensor.shape, generator=generator))


def decoupled(trainer: Trainer) -> Trainer:
    """The state after steps in which stale rows were beyond the clip, and fresh ones hardly ever."""
    trainer.objective_state["clip_fractions"].copy_(torch.tensor([0.1, 0.9]))
    return trainer


# --- NFT's anchor ---


@pytest.mark.parametrize("micro_batch", [8, 16], ids=["apart", "mixed"])
@BOTH
def test_stale_samples_of_weights_that_did_not_change_are_trained_like_fresh_ones(algorithm, micro_batch):
    made = []
    for stale in ((), STALE_SAMPLES):
        trainer = trainer_of(algorithm, micro_batch=micro_batch)
        experience = experience_of(trainer, stale)
        stir(trainer, None)
        trainer.update(experience, range(8))
        made.append(digest(theta_of(trainer)))
    plain = trainer_of(algorithm, keeps_before=False, micro_batch=micro_batch)
    experience = experience_of(plain, ())
    stir(plain, None)
    plain.update(experience, range(8))
    assert made == [digest(theta_of(plain))] * 2


@pytest.mark.parametrize("micro_batch", [3, 8, 16])
def test_nft_compares_each_sample_with_the_policy_that_drew_it(micro_batch):
    """The gradient is that of the fresh samples against old, and of the stale ones against before as if it were old."""
    trainer = trainer_of(NFT, micro_batch=micro_batch)
    experience = experience_of(trainer)
    stir(trainer, None, WeightSet.OLD, WeightSet.BEFORE)
    fresh = [sample for sample in range(8) if sample not in STALE_SAMPLES]
    made = gradient_of(trainer, experience, list(range(8)))

    plain = trainer_of(NFT, keeps_before=False, micro_batch=micro_batch)
    expected: dict[str, torch.Tensor] = {}
    for samples, anchor in ((fresh, WeightSet.OLD), (STALE_SAMPLES, WeightSet.BEFORE)):
        with torch.no_grad():
            for name, parameter in plain.sets.theta.items():
                parameter.copy_(trainer.sets.theta[name])
                plain.sets[WeightSet.OLD][name].copy_(trainer.sets[anchor][name])
        for name, gradient in gradient_of(plain, experience, list(samples)).items():
            expected[name] = expected.get(name, torch.zeros(())) + gradient / 2
    assert_close(made, expected, atol=2e-7)
    all_old = gradient_of(plain, experience, list(range(8)))
    assert sum((all_old[name] - made[name]).square().sum() for name in made) > 1e-6


def test_nft_reports_drift_of_fresh_and_stale_rows_from_their_own_policy():
    trainer = trainer_of(NFT)
    stir(trainer, WeightSet.BEFORE)
    figures = trainer.update(experience_of(trainer), range(8)).figures
    assert figures["drift_fresh"] == 0 < figures["drift_stale"]
    assert figures["stale_share"] == 0.5
    assert figures["drift"] == pytest.approx(figures["drift_stale"] / 2)
    assert "drift_stale" not in trainer.update(experience_of(trainer, ()), range(8)).figures


def test_before_is_the_old_of_the_iteration_before():
    trainer = trainer_of(NftConfig(old_decay=0.5))
    published = [digest(trainer.sets[WeightSet.OLD])]
    for iteration in range(3):
        experience = experience_of(trainer, ())
        samples = tuple(msgspec.structs.replace(s, version=Version(iteration)) for s in experience.rollout.samples)
        rollout = replace(experience.rollout, samples=samples)
        trainer.run_iteration(replace(experience, iteration=iteration, rollout=rollout), GROUPS)
        assert digest(trainer.sets[WeightSet.BEFORE]) == published[-1]
        published.append(digest(trainer.sets[WeightSet.OLD]))
    assert len(set(published)) == 4


def test_before_is_not_kept_where_no_stale_samples_come():
    assert WeightSet.BEFORE not in trainer_of(NFT, keeps_before=False).sets.names
    assert WeightSet.START not in trainer_of(FLOW, keeps_before=False).sets.names


@BOTH
def test_trainer_refuses_samples_two_versions_old(algorithm):
    trainer = trainer_of(algorithm)
    experience = replace(experience_of(trainer), iteration=2)
    with pytest.raises(Stopped, match="version 0 but iteration 2 trains on version 1 and 2 only"):
        trainer.update(experience, range(8))


# --- Flow-GRPO's clip range ---


def test_stale_rows_beyond_the_clip_too_often_are_decoupled_from_the_next_step_on():
    trainer = trainer_of(FLOW)
    experience = experience_of(trainer)
    # The policy that drew the stale samples now differs; the fresh ones were drawn by theta itself.
    strange = experience.rollout.log_prob_BK.clone()
    strange[list(STALE_SAMPLES)] -= torch.tensor([1.0, -1.0, 1.0, -1.0]).unsqueeze(1)
    experience = replace(experience, rollout=replace(experience.rollout, log_prob_BK=strange))
    first = trainer.update(experience, range(8)).figures
    trainer.end_iteration()
    second = trainer.update(experience, range(8)).figures
    assert first["clip_fraction_fresh"] == 0
    assert first["clip_fraction_stale"] == first["clip_fraction"] * 2 == 1
    assert first["decoupled_share"] == 0
    assert second["decoupled_share"] == second["stale_share"] == 0.5
    # Still reported around the policy that drew them, though that clip no longer stops anything.
    assert second["clip_fraction_stale"] == 1
    assert second["clip_fraction"] == second["clip_fraction_fresh"] / 2


def test_stale_rows_beyond_the_clip_as_often_as_fresh_ones_stay_coupled():
    trainer = trainer_of(FLOW)
    experience = experience_of(trainer)
    stir(trainer, None)
    for _ in range(3):
        assert trainer.update(experience, range(8)).figures["decoupled_share"] == 0


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], False),
        ([{CLIPPED_FRESH: 0.2}], False),
        ([{CLIPPED_FRESH: 0.2, CLIPPED_STALE: 0.4}], False),
        ([{CLIPPED_FRESH: 0.2, CLIPPED_STALE: 0.41}], True),
        ([{CLIPPED_FRESH: 0.0, CLIPPED_STALE: 0.0}], False),
        ([{CLIPPED_FRESH: 0.2, CLIPPED_STALE: 0.5}, {CLIPPED_FRESH: 0.3}], True),
        ([{CLIPPED_FRESH: 0.2, CLIPPED_STALE: 0.5}] + [{CLIPPED_FRESH: 0.4, CLIPPED_STALE: 0.5}] * 10, False),
        ([{CLIPPED_FRESH: 0.2, CLIPPED_STALE: 0.3}, {CLIPPED_FRESH: 0.2, CLIPPED_STALE: 0.9}], False),
        ([{CLIPPED_FRESH: 0.2, CLIPPED_STALE: 0.3}] + [{CLIPPED_FRESH: 0.2, CLIPPED_STALE: 0.9}] * 4, True),
    ],
)
def test_clip_watch_follows_running_means(steps, expected):
    watch = ClipWatch()
    for figures in steps:
        watch.update(figures)
    assert watch.decouples is expected


def test_decoupled_gradient_is_that_of_the_written_out_objective():
    """Clipped around the iteration's first weights, weighed by their ratio to the policy that drew the sample."""
    config = FlowGrpoConfig(clip=1e-4, stale_weight_cap=100.0)
    trainer = decoupled(trainer_of(config))
    experience = experience_of(trainer, range(8))
    stir(trainer, WeightSet.START)
    with torch.no_grad():
        for name, parameter in trainer.sets.theta.items():
            parameter.copy_(trainer.sets[WeightSet.START][name])
    stir(trainer, None, by=0.001, seed=2)
    made = gradient_of(trainer, experience, list(range(8)))

    rollout, sampling = experience.rollout, experience.rollout.samples[0].sampling
    sigmas = trainer.adapter.schedule(sampling.size, sampling.steps)
    trainer.optimizer.zero_grad(set_to_none=True)
    stopped, weights = 0, []
    for place in range(2):
        steps = torch.tensor([sample.sampling.window.start + place for sample in rollout.samples])
        x, x_next = rollout.path_BKSC[:, place], rollout.path_BKSC[:, place + 1]

        def log_prob(x=x, x_next=x_next, steps=steps) -> torch.Tensor:
            v = trainer.adapter.velocity(x, sigmas[steps], experience.cond, None, 1.0, sampling.size)
            step = samplers.transition(
                sampling.sampler, x, v, sigmas[steps], sigmas[steps + 1], float(sigmas[1]), sampling.noise_level
            )
            return samplers.log_prob(sampling.sampler, x_next, step).double()

        with torch.no_grad(), trainer.sets.using(WeightSet.START):
            proximal = log_prob()
        ratio = (log_prob() - proximal).exp()
        weight = (proximal - rollout.log_prob_BK[:, place].double()).exp()
        surrogate = torch.maximum(
            -experience.advantage_B * ratio, -experience.advantage_B * ratio.clamp(1 - config.clip, 1 + config.clip)
        )
        stopped += int((surrogate > -experience.advantage_B * ratio).sum())
        weights += weight.tolist()
        ((weight * surrogate).sum() / 16).backward()
    assert 0 < stopped < 16
    assert max(weights) - min(weights) > 0.01
    expected = {name: p.grad for name, p in trainer.sets.theta.items() if p.grad is not None}
    assert_close(made, expected, atol=1e-7)
    assert sum(gradient.square().sum() for gradient in expected.values()) > 1e-6


def test_decoupled_rows_leave_fresh_ones_alone():
    made = []
    for prepared in (trainer_of(FLOW), decoupled(trainer_of(FLOW))):
        experience = experience_of(prepared, ())
        stir(prepared, None)
        prepared.update(experience, range(8))
        made.append(digest(theta_of(prepared)))
    assert made[0] == made[1]


def test_weight_of_a_stale_row_is_truncated_at_the_cap():
    config = FlowGrpoConfig(clip=0.2, stale_weight_cap=2.0)
    old, advantage = torch.zeros(4), torch.ones(4)
    proximal = torch.tensor([0.0, 0.5, 1.0, 900.0], dtype=torch.float64)
    log_prob = proximal.clone().requires_grad_()
    terms = flow_grpo_loss(log_prob, old, advantage, config, proximal_B=proximal)
    terms.loss_B.sum().backward()
    expected = torch.tensor([1.0, 0.5, 2.0, 2.0], dtype=torch.float64)
    expected[1] = torch.tensor(0.5, dtype=torch.float64).exp()
    torch.testing.assert_close(log_prob.grad, -expected)
    assert not terms.clipped_B.any()
    assert terms.strayed_B.tolist() == [False, True, True, True]


def test_decoupled_ratio_of_grpo_guard_is_measured_around_the_first_weights():
    trainer = decoupled(trainer_of(FlowGrpoConfig(ratio_normalisation=True, clip=2e-6)))
    experience = experience_of(trainer, range(8))
    stir(trainer, None)
    with torch.no_grad():
        for name, parameter in trainer.sets.theta.items():
            trainer.sets[WeightSet.START][name].copy_(parameter)
    figures = trainer.update(experience, range(8)).figures
    assert figures["clip_fraction"] == 0 < figures["clip_fraction_stale"]
    assert figures["ratio_deviation"] < 1e-6


# --- Checkpoints ---


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@BOTH
def test_restored_trainer_treats_stale_samples_as_the_undisturbed_one(algorithm, lora, tmp_path: Path):
    undisturbed = trainer_of(algorithm, lora=lora)
    fresh, mixed = experience_of(undisturbed, ()), experience_of(undisturbed)
    undisturbed.run_iteration(fresh, GROUPS)
    stir(undisturbed, None, by=0.01)
    undisturbed.update(mixed, range(8))
    if isinstance(algorithm, FlowGrpoConfig):
        decoupled(undisturbed)
    checkpoint.save(undisturbed, tmp_path / "step_2", BASE_DIGEST)

    restored = trainer_of(algorithm, lora=lora)
    checkpoint.restore(restored, tmp_path / "step_2")
    copied = trainer_of(algorithm, lora=lora)
    copied.run_iteration(fresh, GROUPS)
    checkpoint.load_copy(copied, checkpoint.state_copy(undisturbed))
    reports = [trainer.update(mixed, range(8)) for trainer in (undisturbed, restored, copied)]
    assert len({digest(theta_of(trainer)) for trainer in (undisturbed, restored, copied)}) == 1
    assert reports[0] == reports[1] == reports[2]
    if isinstance(algorithm, FlowGrpoConfig):
        assert reports[0].figures["decoupled_share"] == 0.5
    else:
        assert reports[0].figures["drift_stale"] != reports[0].figures["drift_fresh"]


@BOTH
def test_checkpoint_of_a_run_without_stale_samples_is_refused_only_where_they_come(algorithm, tmp_path: Path):
    checkpoint.save(trainer_of(algorithm, keeps_before=False), tmp_path / "without", BASE_DIGEST)
    checkpoint.restore(trainer_of(algorithm, keeps_before=False), tmp_path / "without")
    with pytest.raises(WeightsError, match="lacks the weights of the previous version"):
        checkpoint.restore(trainer_of(algorithm), tmp_path / "without")


@BOTH
def test_checkpoint_with_what_stale_samples_need_is_read_where_none_come(algorithm, tmp_path: Path):
    made, other = trainer_of(algorithm), trainer_of(algorithm, keeps_before=False)
    made.run_iteration(experience_of(made), GROUPS)
    checkpoint.save(made, tmp_path / "with", BASE_DIGEST)
    checkpoint.restore(other, tmp_path / "with")
    assert digest(theta_of(other)) == digest(theta_of(made))
    with pytest.raises(WeightsError, match="damaged or of another recipe"):
        checkpoint.restore(trainer_of(algorithm, keeps_before=False, lora=LORA), tmp_path / "with")
