"""The trainer: which weights move, which copy follows when, and what never contributes to a gradient."""

from dataclasses import replace

import pytest
import torch
from tiny_models import (
    PROMPTS,
    RUN_SEED,
    conditions,
    grouped_samples,
    kept_pairs,
    rolled_out,
    sample_of,
    tiny_adapter,
    tiny_experience,
    tiny_sampling,
)

from spotlight.compute.train.config import AlgorithmConfig, FlowGrpoConfig, LoraConfig, NftConfig, OldDecay, TrainConfig
from spotlight.compute.train.experience import Experience, joined
from spotlight.compute.train.lora import select_trainable
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.compute.weights.digest import digest
from spotlight.control.pipeline.tsp import BatchesOver, Pair
from spotlight.core.errors import ConfigError, Diverged
from spotlight.core.types import SamplerKind, Window

NFT = NftConfig(kl_weight=0.01)
FLOW = FlowGrpoConfig(kl_weight=0.1)
LORA = LoraConfig(rank=2, alpha=4.0)
GROUPS = [[0, 1], [2, 3], [4, 5], [6, 7]]


def tiny_trainer(algorithm: AlgorithmConfig = NFT, **train) -> Trainer:
    return Trainer(tiny_adapter(), TrainConfig(**{"lr": 1e-3, "micro_batch": 8, **train}), algorithm, RUN_SEED)


def experience_for(trainer: Trainer) -> Experience:
    stochastic = isinstance(trainer.algorithm, FlowGrpoConfig)
    sampling = tiny_sampling(SamplerKind.FLOW_SDE, Window(0, 2)) if stochastic else tiny_sampling()
    return tiny_experience(trainer.adapter, grouped_samples(sampling))


def theta_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in trainer.sets.theta.items()}


def gradient_of(trainer: Trainer, experience: Experience, samples: list[int]) -> dict[str, torch.Tensor]:
    trainer.optimizer.zero_grad(set_to_none=True)
    places = 2
    trainer.accumulate(experience, kept_pairs(experience, samples, places), denominator=len(samples) * places)
    return {name: p.grad.clone() for name, p in trainer.sets.theta.items() if p.grad is not None}


def assert_close(one, other, atol: float) -> None:
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


def test_behaviour_policy_is_old_for_nft_and_theta_for_flow_grpo():
    assert tiny_trainer(NFT).behaviour is WeightSet.OLD
    assert tiny_trainer(FLOW).behaviour is None


def test_published_weights_after_an_iteration_with_the_latest_decay_are_theta():
    trainer = tiny_trainer(NftConfig(old_decay=OldDecay.LATEST))
    before = digest(theta_of(trainer))
    trainer.run_iteration(experience_for(trainer), GROUPS)
    assert digest(trainer.sets[WeightSet.OLD]) == digest(theta_of(trainer)) != before


def test_old_policy_stays_fixed_within_an_iteration():
    """Both updates compare with the weights that rolled out."""
    trainer = tiny_trainer()
    start = digest(trainer.sets[WeightSet.OLD])
    experience = experience_for(trainer)
    first = trainer.update(experience, [0, 1, 2, 3])
    second = trainer.update(experience, [4, 5, 6, 7])
    assert digest(trainer.sets[WeightSet.OLD]) == start
    assert first.figures["drift"] == 0
    assert second.figures["drift"] > 0


def test_reference_never_moves():
    trainer = tiny_trainer(FLOW)
    base = digest(theta_of(trainer))
    trainer.run_iteration(experience_for(trainer), GROUPS)
    assert digest(trainer.sets[WeightSet.REFERENCE]) == base != digest(theta_of(trainer))


def test_lora_starts_as_the_identity_bit_for_bit():
    plain, trainer = tiny_adapter(), tiny_trainer(lora=LORA)
    samples = grouped_samples(tiny_sampling())
    assert torch.equal(rolled_out(trainer.adapter, samples).x0_BSC, rolled_out(plain, samples).x0_BSC)
    assert any(value.any() for value in trainer.sets.theta.values())


@pytest.mark.parametrize("algorithm", [NFT, FLOW], ids=["nft", "flow_grpo"])
def test_lora_trains_its_adapters_and_leaves_the_base_bit_identical(algorithm):
    trainer = tiny_trainer(algorithm, lora=LORA)
    base = {name: p.detach().clone() for name, p in trainer.adapter.transformer.named_parameters()}
    trainer.run_iteration(experience_for(trainer), GROUPS)
    assert len(trainer.sets.theta) == 2 * 2 * len(trainer.adapter.lora_targets)
    assert all(".lora_A." in name or ".lora_B." in name for name in trainer.sets.theta)
    after = dict(trainer.adapter.transformer.named_parameters())
    changed = {name for name, value in base.items() if not torch.equal(after[name], value)}
    # The last block's text stream has no effect on the picture beyond its attention, so its output and MLP stay.
    assert changed <= set(trainer.sets.theta)
    assert {name for name in trainer.sets.theta if "transformer_blocks.0." in name} <= changed


def test_lora_adapters_depend_on_the_run_seed_and_leave_the_global_generator_alone():
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    made = []
    for seed in (0, 0, 1):
        adapter = tiny_adapter()
        select_trainable(adapter.transformer, LORA, adapter.lora_targets, seed)
        made.append(digest({n: p for n, p in adapter.transformer.named_parameters() if p.requires_grad}))
    assert made[0] == made[1] != made[2]
    assert torch.equal(torch.random.get_rng_state(), state)


def test_lora_over_a_bf16_base_keeps_its_adapters_in_fp32():
    """In bf16 a step of 1e-4 on a weight of 0.1 rounds to nothing."""
    adapter = tiny_adapter()
    for parameter in adapter.transformer.parameters():
        parameter.data = parameter.data.bfloat16()
    select_trainable(adapter.transformer, LORA, adapter.lora_targets, 0)
    dtypes = {p.requires_grad: p.dtype for p in adapter.transformer.parameters()}
    assert dtypes == {True: torch.float32, False: torch.bfloat16}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_full_fine_tune_of_half_precision_weights_is_refused(dtype):
    adapter = tiny_adapter()
    adapter.transformer.proj_out.to(dtype)
    with pytest.raises(ConfigError, match=f"weights to train are {dtype}, .*float32, or set train.lora"):
        Trainer(adapter, TrainConfig(), NFT, RUN_SEED)


def test_full_fine_tune_of_double_precision_weights_is_taken():
    adapter = tiny_adapter()
    adapter.transformer.double()
    assert {p.dtype for p in Trainer(adapter, TrainConfig(), NFT, RUN_SEED).sets.theta.values()} == {torch.float64}


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("algorithm", [NFT, FLOW], ids=["nft", "flow_grpo"])
def test_gradient_under_checkpointing_is_that_without_it(algorithm, lora):
    """Old and reference differ from theta here, so a recomputation that saw their weights would show."""
    made = []
    for checkpointing in (False, True):
        trainer = tiny_trainer(algorithm, lora=lora, gradient_checkpointing=checkpointing)
        experience = experience_for(trainer)
        with torch.no_grad():
            generator = torch.Generator().manual_seed(1)
            for parameter in trainer.sets.theta.values():
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
        made.append(gradient_of(trainer, experience, list(range(8))))
    assert_close(made[0], made[1], atol=1e-7)
    assert sum(g.square().sum() for g in made[0].values()) > 1e-8


def test_gradient_that_is_not_finite_is_refused_and_changes_nothing():
    trainer = tiny_trainer()
    experience = experience_for(trainer)
    before = digest(theta_of(trainer))
    broken = replace(experience, advantage_B=experience.advantage_B.index_fill(0, torch.tensor([3]), float("nan")))
    with pytest.raises(Diverged, match="iteration 0 is nan") as refusal:
        trainer.run_iteration(broken, [list(range(8))])
    # A loop without checkpoints raises this too, so the text must not name one.
    assert "checkpoint" not in str(refusal.value)
    assert digest(theta_of(trainer)) == digest(trainer.sets[WeightSet.EMA]) == before
    assert trainer.update(experience, list(range(8))).grad_norm > 0


@pytest.mark.parametrize("algorithm", [NFT, FLOW], ids=["nft", "flow_grpo"])
def test_samples_that_are_not_kept_contribute_nothing(algorithm):
    """Their tensors may hold anything; the mean is still over all samples of the update."""
    trainer = tiny_trainer(algorithm)
    experience = experience_for(trainer)
    dropped = torch.tensor([1, 6])
    kept_B = torch.ones(8, dtype=torch.bool).index_fill(0, dropped, False)
    poisoned = replace(
        experience,
        kept_B=kept_B,
        advantage_B=experience.advantage_B.index_fill(0, dropped, float("nan")),
        rollout=replace(experience.rollout, x0_BSC=experience.rollout.x0_BSC.index_fill(0, dropped, float("nan"))),
    )
    made = gradient_of(trainer, poisoned, list(range(8)))
    kept_only = gradient_of(trainer, experience, [0, 2, 3, 4, 5, 7])
    assert_close(made, {name: value * 6 / 8 for name, value in kept_only.items()}, atol=1e-7)
    report = trainer.update(poisoned, list(range(8)))
    assert report.rows == 12
    assert report.grad_norm == pytest.approx(float(sum(g.square().sum() for g in made.values()) ** 0.5), rel=1e-5)


def test_update_without_a_kept_sample_leaves_the_weights():
    trainer = tiny_trainer()
    before = digest(theta_of(trainer))
    report = trainer.update(replace(experience_for(trainer), kept_B=torch.zeros(8, dtype=torch.bool)), list(range(8)))
    assert (report.rows, report.loss, report.grad_norm) == (0, 0.0, 0.0)
    assert digest(theta_of(trainer)) == before


@pytest.mark.parametrize(("updates", "expected"), [(1, [8]), (2, [4, 4]), (3, [4, 2, 2]), (9, [2, 2, 2, 2])])
def test_updates_take_disjoint_groups_that_cover_all_samples(updates, expected, monkeypatch):
    trainer = tiny_trainer(updates_per_iteration=updates)
    taken: list[list[int]] = []
    monkeypatch.setattr(trainer, "update", lambda experience, samples: taken.append(list(samples)))
    trainer.run_iteration(experience_for(trainer), GROUPS)
    assert [len(samples) for samples in taken] == expected
    assert sorted(sample for samples in taken for sample in samples) == list(range(8))
    for samples in taken:
        assert all(set(group) <= set(samples) or not set(group) & set(samples) for group in GROUPS)


def test_updates_of_another_iteration_mix_other_groups(monkeypatch):
    """Prompts alternate between tasks; fixed halves would always train the same tasks first."""
    trainer = tiny_trainer(updates_per_iteration=2)
    taken: list[tuple[int, ...]] = []
    monkeypatch.setattr(trainer, "update", lambda experience, samples: taken.append(tuple(samples)))
    for iteration in range(8):
        trainer.run_iteration(replace(experience_for(trainer), iteration=iteration), GROUPS)
    assert len(set(taken[::2])) > 2


def sigmas_seen(trainer: Trainer, experience: Experience, rows: list[Pair], monkeypatch) -> list[list[float]]:
    """The noise levels of every forward: old, then theta, micro-batch by micro-batch."""
    seen, real = [], trainer.adapter.velocity

    def velocity(x_BSC, sigma_B, *rest):
        seen.append([round(sigma, 4) for sigma in sigma_B.tolist()])
        return real(x_BSC, sigma_B, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.adapter, "velocity", velocity)
        trainer.accumulate(experience, rows, len(rows))
    return seen


def test_nft_visits_every_step_of_a_sample_once_when_asked_for_more_than_there_are(monkeypatch):
    trainer = tiny_trainer(NftConfig(timesteps_per_sample=99))
    experience = experience_for(trainer)
    old, theta = sigmas_seen(trainer, experience, [Pair(3, place) for place in range(5)], monkeypatch)
    assert old == theta
    assert sorted(theta) == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert trainer.update(experience, [0]).rows == 5


def test_nft_draws_timesteps_and_noise_by_sample_and_iteration(monkeypatch):
    trainer = tiny_trainer()
    experience = experience_for(trainer)
    rows = [Pair(sample, place) for sample in range(8) for place in range(2)]
    first, again, later = (
        sigmas_seen(trainer, replace(experience, iteration=iteration), rows, monkeypatch) for iteration in (0, 0, 1)
    )
    assert first == again != later
    assert len({tuple(batch[i : i + 2]) for batch in first for i in range(0, 8, 2)}) > 3
    losses = [trainer.accumulate(replace(experience, iteration=k), rows[:1], 1)[0] for k in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


def places_seen(trainer: Trainer, experience: Experience, monkeypatch) -> list[list[float]]:
    """The noise levels of each forward of an update without a KL term and with the ODE: old's and theta's."""
    rows = kept_pairs(experience, range(8), 2)
    return sigmas_seen(trainer, experience, rows, monkeypatch)[::2]


@pytest.mark.parametrize("micro_batch", [3, 8, 64])
def test_batches_over_samples_take_one_timestep_of_each_sample_at_a_time(micro_batch, monkeypatch):
    over_pairs, over_samples = (
        tiny_trainer(NftConfig(), micro_batch=micro_batch, batches_over=over) for over in BatchesOver
    )
    experience = experience_for(over_pairs)
    by_pair, by_sample = (places_seen(trainer, experience, monkeypatch) for trainer in (over_pairs, over_samples))
    flat_pairs, flat_samples = ([sigma for batch in batches for sigma in batch] for batches in (by_pair, by_sample))
    assert flat_samples == flat_pairs[::2] + flat_pairs[1::2]
    sizes = [min(micro_batch, 8 - start) for start in range(0, 8, micro_batch)]
    assert [len(batch) for batch in by_sample] == sizes * 2
    assert len(by_pair[0]) == min(micro_batch, 16)


def test_step_of_samples_with_windows_of_different_lengths_counts_each_of_their_rows_once():
    trainer = tiny_trainer(FLOW)
    windows = (Window(0, 1), Window(1, 3))
    apart = [
        rolled_out(trainer.adapter, [sample_of(PROMPTS[group], seed, tiny_sampling(SamplerKind.CPS, window))])
        for group, window in enumerate(windows)
        for seed in (0, 1)
    ]
    samples = [sample for rollout in apart for sample in rollout.samples]
    whole = tiny_experience(trainer.adapter, samples[:2])
    whole = replace(
        whole,
        rollout=joined(apart),
        cond=conditions(trainer.adapter, samples),
        advantage_B=torch.tensor([0.5, -0.7, 0.9, -0.3]),
        kept_B=torch.ones(4, dtype=torch.bool),
    )
    made = trainer.update(whole, range(4))
    assert made.rows == 8
    # A window's padding is never trained on, whatever it holds.
    other = tiny_trainer(FLOW)
    padded = whole.rollout.log_prob_BK.clone()
    padded[:2, 1:] = float("nan")
    other.update(replace(whole, rollout=replace(whole.rollout, log_prob_BK=padded)), range(4))
    assert digest(theta_of(other)) == digest(theta_of(trainer))


@pytest.mark.parametrize("algorithm", [NFT, FLOW], ids=["nft", "flow_grpo"])
def test_update_in_parts_of_whole_micro_batches_is_the_update_in_one_bit_for_bit(algorithm):
    whole, parted = tiny_trainer(algorithm, micro_batch=4), tiny_trainer(algorithm, micro_batch=4)
    experience = experience_for(whole)
    wanted = whole.update(experience, range(6))
    parted.begin(6)
    parted.add(experience, [0, 1])
    parted.add(experience, [2, 3, 4, 5])
    assert parted.finish(experience.iteration) == wanted
    assert digest(theta_of(parted)) == digest(theta_of(whole))


def test_part_that_fails_half_way_drops_the_update(monkeypatch):
    """The gradient holds an unknown part of its rows."""
    trainer, straight = tiny_trainer(), tiny_trainer()
    experience = experience_for(trainer)
    real, forwards = trainer.adapter.velocity, iter([True, True, True, False])

    def velocity(*arguments):
        if not next(forwards, True):
            raise RuntimeError("boom")
        return real(*arguments)

    trainer.begin(8)
    with monkeypatch.context() as patch:
        patch.setattr(trainer.adapter, "velocity", velocity)
        with pytest.raises(RuntimeError, match="boom"):
            trainer.add(experience, range(8))
    for call in (lambda: trainer.add(experience, [0]), lambda: trainer.finish(0)):
        with pytest.raises(ValueError, match="no update is under way"):
            call()
    for each in (trainer, straight):
        each.update(experience, range(8))
    assert digest(theta_of(trainer)) == digest(theta_of(straight))


def test_flow_grpo_without_a_window_is_refused():
    trainer = tiny_trainer(FLOW)
    with pytest.raises(ConfigError, match="without an SDE window"):
        trainer.update(tiny_experience(trainer.adapter, grouped_samples(tiny_sampling())), [0, 1])


def test_training_lifts_the_preference_for_good_samples():
    """A few NFT steps on one fixed batch must lower its loss: signs of the whole path are right."""
    trainer = tiny_trainer(NftConfig(), lr=3e-4)
    experience = experience_for(trainer)
    losses = [trainer.update(experience, list(range(8))).loss for _ in range(8)]
    assert losses[-1] < losses[0]


def test_joined_rollouts_are_the_rollout_of_one_batch():
    adapter = tiny_adapter()
    samples = grouped_samples(tiny_sampling(SamplerKind.CPS, Window(0, 2)))
    whole, parts = (
        rolled_out(adapter, samples),
        joined([rolled_out(adapter, samples[:4]), rolled_out(adapter, samples[4:])]),
    )
    assert parts.samples == whole.samples
    for name in ("x0_BSC", "path_BKSC", "mean_BKSC", "log_prob_BK"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=0, atol=1e-5)
