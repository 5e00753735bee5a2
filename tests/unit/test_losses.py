"""NFT and Flow-GRPO losses against their closed forms, and the configs they are steered by."""

import math

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from spotlight.compute.rollout import samplers
from spotlight.compute.rollout.samplers import Transition
from spotlight.compute.train.config import (
    AdvantageConfig,
    AlgorithmConfig,
    FlowGrpoConfig,
    NftConfig,
    OldDecay,
    TrainConfig,
)
from spotlight.compute.train.losses.flow_grpo import flow_grpo_loss, normalised_log_ratio, reference_kl
from spotlight.compute.train.losses.nft import nft_loss, noised, preference
from spotlight.control.advantage import StdMode
from spotlight.core.types import SamplerKind

B, S, C = 5, 6, 3
BIG_CLIP = 0.2


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --- NFT ---


class NftCase:
    """Five samples at five noise levels, from clearly bad (r = 0) to clearly good (r = 1)."""

    x0, noise, v_old = normal(B, S, C, seed=1), normal(B, S, C, seed=2), normal(B, S, C, seed=3)
    t_B, r_B = vector(0.02, 0.3, 0.5, 0.9, 1.0), vector(0.0, 0.2, 0.5, 0.9, 1.0)
    x_t = noised(x0, noise, t_B)

    def terms(self, v_theta: Tensor, config: NftConfig, v_ref: Tensor | None = None):
        return nft_loss(v_theta, self.v_old, self.x_t, self.x0, self.t_B, self.r_B, config, v_ref)

    def gradient(self, v_theta: Tensor, config: NftConfig) -> Tensor:
        v_theta = v_theta.clone().requires_grad_()
        self.terms(v_theta, config).loss_B.sum().backward()
        assert v_theta.grad is not None
        return v_theta.grad


def test_preference_is_half_at_zero_and_saturates():
    assert preference(vector(-9, -2, -1, 0, 1, 2, 9), 2.0).tolist() == [0, 0, 0.25, 0.5, 0.75, 1, 1]


def test_noised_uses_each_rows_own_time():
    x0, noise = torch.full((3, 1, 1), 4.0), torch.full((3, 1, 1), 8.0)
    assert noised(x0, noise, torch.tensor([0.0, 0.25, 1.0])).flatten().tolist() == [4.0, 5.0, 8.0]


@pytest.mark.parametrize("beta", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("clip", [1.0, 5.0])
def test_nft_gradient_at_old_is_preference_weighted_flow_matching(beta: float, clip: float):
    case = NftCase()
    made = case.gradient(case.v_old, NftConfig(beta=beta, advantage_clip=clip))
    v = case.v_old.clone().requires_grad_()
    # Flow matching in its own variables: the x0 error is t times the velocity error, so w = t mean|v - u|.
    error = v - (case.noise - case.x0)
    weight_B = case.t_B * error.detach().abs().mean((1, 2))
    matching_B = case.t_B.square() * error.square().mean((1, 2)) / weight_B
    (clip * (2 * case.r_B - 1) * matching_B).sum().backward()
    torch.testing.assert_close(made, v.grad, rtol=1e-10, atol=1e-13)
    assert made[2].abs().max() < 1e-14
    assert made[0].abs().max() > 1e-5


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_nft_loss_away_from_old_matches_the_two_policies(beta: float):
    case, config = NftCase(), NftConfig(beta=beta, advantage_clip=5.0, kl_weight=0.3)
    v_theta, v_ref = normal(B, S, C, seed=4), normal(B, S, C, seed=5)
    made = case.terms(v_theta, config, v_ref)
    for i in range(B):
        t, r = case.t_B[i], case.r_B[i]
        positive = beta * v_theta[i] + (1 - beta) * case.v_old[i]
        negative = (1 + beta) * case.v_old[i] - beta * v_theta[i]
        errors = [case.x_t[i] - t * v - case.x0[i] for v in (positive, negative)]
        good, bad = ((e**2 / e.abs().mean()).mean() for e in errors)
        kl = ((v_theta[i] - v_ref[i]) ** 2).mean()
        expected = 5.0 * (r * good / beta + (1 - r) * bad / beta) + 0.3 * kl
        assert made.loss_B[i].item() == pytest.approx(expected.item(), rel=1e-12)
        assert made.positive_B[i].item() == pytest.approx(good.item(), rel=1e-12)
        assert made.negative_B[i].item() == pytest.approx(bad.item(), rel=1e-12)
        assert made.kl_B[i].item() == pytest.approx(kl.item(), rel=1e-12)
        drift = ((v_theta[i] - case.v_old[i]) ** 2).mean()
        assert made.drift_B[i].item() == pytest.approx(drift.item(), rel=1e-12)


def test_nft_weights_carry_no_gradient():
    """Were w differentiated, scaling the error would leave sqrt-like slopes: half of the right gradient."""
    case = NftCase()
    made = case.gradient(case.v_old, NftConfig())[4]
    error = case.x_t[4] - case.t_B[4] * case.v_old[4] - case.x0[4]
    expected = -2 * case.t_B[4] * error / error.abs().mean() / error.numel()
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-15)


def test_nft_gives_gradient_to_theta_only():
    case = NftCase()
    theta, old, ref = (normal(B, S, C, seed=seed).requires_grad_() for seed in (6, 7, 8))
    config = NftConfig(kl_weight=1.0)
    nft_loss(theta, old, case.x_t, case.x0, case.t_B, case.r_B, config, ref).loss_B.sum().backward()
    assert theta.grad is not None
    assert old.grad is None
    assert ref.grad is None


def test_nft_survives_a_perfect_prediction():
    """With x0 = 0 the noise is the exact velocity and the error exactly 0: only the floor of w avoids 0/0."""
    case = NftCase()
    x0, v = torch.zeros_like(case.x0), case.noise.clone().requires_grad_()
    made = nft_loss(v, case.noise, noised(x0, case.noise, case.t_B), x0, case.t_B, case.r_B, NftConfig())
    made.loss_B.sum().backward()
    assert made.loss_B.tolist() == [0.0] * B
    assert v.grad is not None
    assert not v.grad.any()


def test_nft_in_float32_reduces_in_float64():
    case = NftCase()
    inputs = [part.float() for part in (case.v_old * 1.1, case.v_old, case.x_t, case.x0, case.t_B, case.r_B)]
    made = nft_loss(*inputs, NftConfig())
    exact = nft_loss(*[part.double() for part in inputs], NftConfig())
    assert made.loss_B.dtype is torch.float64
    assert torch.equal(made.loss_B, exact.loss_B)


def test_nft_kl_without_reference_is_refused():
    case = NftCase()
    with pytest.raises(ValueError, match=r"weight 0\.5"):
        case.terms(case.v_old, NftConfig(kl_weight=0.5))


# --- Flow-GRPO ---


def test_on_policy_gradient_is_advantage_times_log_prob_gradient():
    log_prob_B = normal(4).requires_grad_()
    advantage_B = vector(-2.0, 0.0, 0.5, 7.0)
    made = flow_grpo_loss(log_prob_B, log_prob_B.detach().clone(), advantage_B, FlowGrpoConfig())
    made.loss_B.sum().backward()
    # The last advantage is clamped to 5.
    assert log_prob_B.grad is not None
    assert log_prob_B.grad.tolist() == [2.0, 0.0, -0.5, -5.0]
    assert made.loss_B.tolist() == [2.0, 0.0, -0.5, -5.0]
    assert made.ratio_B.tolist() == [1.0] * 4
    assert made.approx_kl_B.tolist() == [0.0] * 4
    assert not made.clipped_B.any()
    assert not made.overflow_B.any()


def test_clip_acts_on_the_side_where_the_policy_already_moved_enough():
    """Rows: (A>0, r high), (A>0, r low), (A<0, r high), (A<0, r low), (A>0, r just inside)."""
    ratio_B, advantage_B = vector(1.5, 0.5, 1.5, 0.5, 1.1), vector(2, 2, -2, -2, 2)
    log_prob_B = ratio_B.log().requires_grad_()
    made = flow_grpo_loss(log_prob_B, torch.zeros(5), advantage_B, FlowGrpoConfig(clip=BIG_CLIP))
    made.loss_B.sum().backward()
    assert made.clipped_B.tolist() == [True, False, False, True, False]
    assert made.loss_B.tolist() == pytest.approx([-2.4, -1.0, 3.0, 1.6, -2.2])
    assert log_prob_B.grad is not None
    assert log_prob_B.grad.tolist() == pytest.approx([0.0, -1.0, 3.0, 0.0, -2.2])
    assert made.ratio_B.tolist() == pytest.approx(ratio_B.tolist())
    assert made.approx_kl_B.tolist() == pytest.approx((0.5 * ratio_B.log().square()).tolist())
    assert not made.ratio_B.requires_grad


def test_float32_log_probs_do_not_blur_a_small_clip():
    log_prob_B = torch.tensor([1e-6, 3e-6], requires_grad=True)
    made = flow_grpo_loss(log_prob_B, torch.zeros(2), torch.ones(2), FlowGrpoConfig(clip=2e-6))
    assert made.ratio_B.dtype is torch.float64
    assert (made.ratio_B - 1).tolist() == pytest.approx([1e-6, 3e-6], rel=1e-5)
    assert made.clipped_B.tolist() == [False, True]


@pytest.mark.parametrize("log_ratio", [21.0, 1000.0, math.inf])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_overflowing_ratio_gives_a_finite_flat_loss(log_ratio: float, advantage: float):
    log_prob_B = vector(log_ratio, 0.01).requires_grad_()
    made = flow_grpo_loss(log_prob_B, torch.zeros(2), vector(advantage, 1.0), FlowGrpoConfig(clip=BIG_CLIP))
    made.loss_B.sum().backward()
    assert made.loss_B.tolist() == pytest.approx([-advantage * (1 + BIG_CLIP), -math.exp(0.01)])
    assert log_prob_B.grad is not None
    assert log_prob_B.grad.tolist() == pytest.approx([0.0, -math.exp(0.01)])
    assert made.overflow_B.tolist() == [True, False]
    assert made.ratio_B.isfinite().all()


def test_nan_log_prob_is_not_hidden():
    made = flow_grpo_loss(vector(math.nan, 0.0), torch.zeros(2), torch.ones(2), FlowGrpoConfig())
    assert made.loss_B.isnan().tolist() == [True, False]


class Step:
    """One replayed step per row: what the rollout drew, and what two other policies would have done."""

    sigma_B, next_B = vector(1.0, 0.9, 0.6, 0.5, 0.3), vector(0.9, 0.7, 0.5, 0.2, 0.1)
    noise, x = normal(B, S, C, seed=11), normal(B, S, C, seed=12)
    velocities = normal(3, B, S, C, seed=13)

    def __init__(self, kind: SamplerKind = SamplerKind.FLOW_SDE, level: float = 0.7) -> None:
        made = [samplers.transition(kind, self.x, v, self.sigma_B, self.next_B, 0.9, level) for v in self.velocities]
        self.kind, (self.current, self.old, self.reference) = kind, made
        self.x_next = self.old.sample(self.noise)
        self.log_prob_B = samplers.log_prob(kind, self.x_next, self.current)
        self.old_log_prob_B = samplers.log_prob(kind, self.x_next, self.old)


@pytest.mark.parametrize("kind", [SamplerKind.FLOW_SDE, SamplerKind.DANCE_SDE, SamplerKind.CPS])
def test_guard_log_ratio_is_the_mean_of_shift_times_noise(kind: SamplerKind):
    step = Step(kind)
    made_B = normalised_log_ratio(step.current, step.x_next, step.old.mean)
    shift = step.current.mean - step.old.mean
    torch.testing.assert_close(made_B, (shift * step.noise).mean((1, 2)), rtol=1e-11, atol=1e-13)


def test_guard_log_ratio_is_the_centred_and_scaled_difference_of_log_probs():
    step = Step()
    std_B = step.old.std_B
    bias_B = (step.current.mean - step.old.mean).square().mean((1, 2)) / (2 * std_B.square())
    expected_B = (step.log_prob_B - step.old_log_prob_B + bias_B) * std_B
    made_B = normalised_log_ratio(step.current, step.x_next, step.old.mean)
    torch.testing.assert_close(made_B, expected_B, rtol=1e-10, atol=1e-12)
    # Per sample: a batch of one gives the same, which a mean over the batch would not.
    alone = Transition(step.current.mean[:1], step.current.std_B[:1], step.current.diffusion_B[:1])
    assert torch.equal(normalised_log_ratio(alone, step.x_next[:1], step.old.mean[:1]), made_B[:1])


def test_guard_loss_uses_the_normalised_ratio_and_weighs_steps_by_dt():
    step, advantage_B = Step(), vector(1, -1, 0.5, 2, -2)
    config = FlowGrpoConfig(ratio_normalisation=True, clip=0.99, advantage_clip=5)
    made = flow_grpo_loss(
        step.log_prob_B,
        step.old_log_prob_B,
        advantage_B,
        config,
        current=step.current,
        x_next=step.x_next,
        old_mean=step.old.mean,
    )
    ratio_B = ((step.current.mean - step.old.mean) * step.noise).mean((1, 2)).exp()
    dt_B = step.sigma_B - step.next_B
    torch.testing.assert_close(made.ratio_B, ratio_B, rtol=1e-10, atol=0)
    torch.testing.assert_close(made.loss_B, -advantage_B * ratio_B / dt_B, rtol=1e-10, atol=0)
    plain = flow_grpo_loss(step.log_prob_B, step.old_log_prob_B, advantage_B, FlowGrpoConfig())
    assert (plain.ratio_B - made.ratio_B).abs().min() > 1e-3


def test_kl_with_and_without_dt_differ_by_dt():
    step = Step()
    with_dt_B = reference_kl(step.current, step.reference.mean, divides_by_dt=True)
    without_B = reference_kl(step.current, step.reference.mean, divides_by_dt=False)
    torch.testing.assert_close(without_B / with_dt_B, step.sigma_B - step.next_B, rtol=1e-12, atol=0)
    std = step.current.std_B.view(-1, 1, 1)
    exact = torch.distributions.kl_divergence(
        torch.distributions.Normal(step.current.mean, std),
        torch.distributions.Normal(step.reference.mean, std),
    )
    torch.testing.assert_close(with_dt_B, exact.mean((1, 2)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("with_dt", [True, False])
def test_kl_enters_the_loss_with_its_weight(with_dt: bool):
    step, ones_B = Step(), torch.ones(B)
    config = FlowGrpoConfig(kl_weight=0.04, kl_divides_by_dt=with_dt)
    free = flow_grpo_loss(step.log_prob_B, step.old_log_prob_B, ones_B, FlowGrpoConfig())
    tied = flow_grpo_loss(
        step.log_prob_B,
        step.old_log_prob_B,
        ones_B,
        config,
        current=step.current,
        ref_mean=step.reference.mean,
    )
    kl_B = reference_kl(step.current, step.reference.mean, with_dt)
    torch.testing.assert_close(tied.loss_B, free.loss_B + 0.04 * kl_B, rtol=1e-12, atol=0)
    assert torch.equal(tied.kl_B, kl_B)
    assert not free.kl_B.any()


def test_missing_parts_are_refused():
    step, ones_B = Step(), torch.ones(B)
    with pytest.raises(ValueError, match="old_mean"):
        flow_grpo_loss(
            step.log_prob_B,
            step.old_log_prob_B,
            ones_B,
            FlowGrpoConfig(ratio_normalisation=True),
            current=step.current,
            x_next=step.x_next,
        )
    with pytest.raises(ValueError, match=r"weight 0\.1"):
        flow_grpo_loss(step.log_prob_B, step.old_log_prob_B, ones_B, FlowGrpoConfig(kl_weight=0.1))


# --- Configs ---


def test_algorithm_is_chosen_by_kind_and_unknown_settings_are_refused():
    adapter: TypeAdapter[AlgorithmConfig] = TypeAdapter(AlgorithmConfig)
    assert adapter.validate_python({"kind": "nft", "beta": 0.1}) == NftConfig(beta=0.1)
    assert adapter.validate_python({"kind": "flow_grpo"}) == FlowGrpoConfig()
    for wrong in ({"kind": "ppo"}, {"kind": "nft", "clip": 1e-4}, {"kind": "nft", "beta": 0}):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)
    for wrong in ({"lr": math.nan}, {"betas": (0.9, 1.0)}, {"micro_batch": 0}, {"lora": {"rank": 0}}):
        with pytest.raises(ValidationError):
            TrainConfig.model_validate(wrong)
    assert AdvantageConfig.model_validate({"std": "iteration"}).std is StdMode.ITERATION
    assert NftConfig.model_fields["beta"].description is not None


def test_old_decay_schedules_of_the_paper():
    """By its `global_step` after an epoch of one optimizer step, then of more."""

    def at(schedule: OldDecay) -> list[float]:
        return [schedule.at(k) for k in (1, 75, 76, 100, 400, 1000)]

    assert at(OldDecay.LATEST) == [0.0] * 6
    assert at(OldDecay.RAMP) == pytest.approx([0.001, 0.075, 0.076, 0.1, 0.4, 0.5])
    assert at(OldDecay.DELAYED) == pytest.approx([0, 0, 0.0075, 0.1875, 0.999, 0.999])


def test_average_warms_up_to_its_decay():
    warm, constant = TrainConfig(ema_decay=0.9), TrainConfig(ema_decay=0.9, ema_warmup=False)
    assert [warm.ema_decay_at(k) for k in (1, 2, 10, 79, 80, 81, 1000)] == pytest.approx(
        [2 / 11, 3 / 12, 11 / 20, 80 / 89, 0.9, 0.9, 0.9]
    )
    assert TrainConfig(ema_decay=0.98).ema_decay_at(440) == pytest.approx(0.98)
    assert {constant.ema_decay_at(k) for k in (1, 10, 1000)} == {0.9}
    assert TrainConfig(ema_decay=0.0).ema_decay_at(5) == 0.0
