"""Flow-GRPO: the clipped policy gradient on one denoising step per row, with KL and GRPO-Guard's normalised
ratio.

Losses are per row, in float64, and a row's loss does not depend on its neighbours: any partition into
micro-batches sums to the same gradient. A ratio that overflows gives a finite, flat loss and is counted; NaN
log-probabilities stay NaN, so that a broken model is noticed. B batch, S tokens, C channels.

The clip applies to the ratio to the policy that drew the sample. A row may have a *proximal* policy instead (decoupled
PPO): the clip applies to the ratio to that one, and the row is weighted by its truncated ratio to the drawing policy.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spotlight.compute.rollout.samplers import Transition
from spotlight.compute.train.config import FlowGrpoConfig

LARGEST_LOG_RATIO = 20.0
"""Larger log-ratios count as overflow: the two policies have nothing in common."""


@dataclass(frozen=True)
class FlowGrpoTerms:
    """`loss_B` carries the gradient; the rest is detached and for the log."""

    loss_B: Tensor
    ratio_B: Tensor
    """The clipped ratio: GRPO-Guard's if that is on; capped where it overflows."""
    clipped_B: Tensor
    """Whether the clip stopped this row's policy gradient."""
    strayed_B: Tensor
    """Whether the clip around the policy that drew the sample would stop it, even if a proximal policy is in use."""
    overflow_B: Tensor
    """Whether the ratio overflowed, so that the row has no policy gradient."""
    approx_kl_B: Tensor
    """Half the squared log-ratio of the log-probabilities."""
    kl_B: Tensor
    """Divergence from the reference, before its weight; 0 without a reference."""


def flow_grpo_loss(
    log_prob_B: Tensor,
    old_log_prob_B: Tensor,
    advantage_B: Tensor,
    config: FlowGrpoConfig,
    *,
    current: Transition | None = None,
    x_next: Tensor | None = None,
    old_mean: Tensor | None = None,
    ref_mean: Tensor | None = None,
    proximal_B: Tensor | None = None,
) -> FlowGrpoTerms:
    """Compute the per-row loss of one denoising step.

    `current` is the transition of the trained policy. GRPO-Guard needs it with `x_next` and `old_mean` of the
    rollout; a KL weight above 0 needs it with `ref_mean`. `proximal_B` is the log-ratio (`log_ratio`) of each row's
    proximal policy to the one that drew it; 0 where they are equal.
    """
    difference_B = log_prob_B.double() - old_log_prob_B.detach().double()
    drawn_B = log_ratio(log_prob_B, old_log_prob_B, config, current=current, x_next=x_next, old_mean=old_mean)
    loss_B, ratio_B, clipped_B, overflow_B = _clipped(drawn_B, advantage_B, config)
    strayed_B = clipped_B
    if proximal_B is not None:
        loss_B, ratio_B, clipped_B, overflow_B = _clipped(drawn_B - proximal_B, advantage_B, config)
        # Truncated before exp, which could overflow.
        loss_B = loss_B * proximal_B.clamp_max(math.log(config.stale_weight_cap)).exp()
    if config.ratio_normalisation and current is not None:
        loss_B = loss_B / (current.std_B / current.diffusion_B).square()
    kl_B = torch.zeros_like(loss_B)
    if config.kl_weight > 0:
        if current is None or ref_mean is None:
            raise ValueError(
                f"Flow-GRPO with KL weight {config.kl_weight} needs the transition and ref_mean, which the term "
                "compares; pass them, or set the weight to 0."
            )
        kl_B = reference_kl(current, ref_mean, config.kl_divides_by_dt)
        loss_B = loss_B + config.kl_weight * kl_B
    return FlowGrpoTerms(
        loss_B=loss_B,
        ratio_B=ratio_B,
        clipped_B=clipped_B,
        strayed_B=strayed_B,
        overflow_B=overflow_B,
        approx_kl_B=0.5 * difference_B.detach().square(),
        kl_B=kl_B.detach(),
    )


def log_ratio(
    log_prob_B: Tensor,
    old_log_prob_B: Tensor,
    config: FlowGrpoConfig,
    *,
    current: Transition | None = None,
    x_next: Tensor | None = None,
    old_mean: Tensor | None = None,
) -> Tensor:
    """Log-ratio of a policy to the one that drew the sample, for the clip; GRPO-Guard's if that is on."""
    if not config.ratio_normalisation:
        # In float64, because float32 resolves a ratio near 1 to 1e-7 only and clips are as small as 2e-6.
        return log_prob_B.double() - old_log_prob_B.detach().double()
    if current is None or x_next is None or old_mean is None:
        raise ValueError(
            "GRPO-Guard's ratio needs the transition, x_next and old_mean; pass them, or turn ratio_normalisation off."
        )
    return normalised_log_ratio(current, x_next, old_mean).double()


def normalised_log_ratio(current: Transition, x_next: Tensor, old_mean: Tensor) -> Tensor:
    """GRPO-Guard's log-ratio, mean((mean - old_mean) * eps) with eps the noise that the rollout drew.

    It equals (log p - log p_old + b) * std, with b = mean((mean - old_mean)^2) / (2 std^2) and Gaussian
    log-densities, but without their cancellation, and holds for CPS as well.
    """
    drawn = (x_next - old_mean).detach()
    return ((current.mean - old_mean.detach()) * drawn).flatten(1).mean(1) / current.std_B


def reference_kl(current: Transition, ref_mean: Tensor, divides_by_dt: bool) -> Tensor:
    """mean((mean - ref_mean)^2) / (2 scale^2): scale is std (the KL per dimension) or g (as published)."""
    scale_B = current.std_B if divides_by_dt else current.diffusion_B
    return (current.mean - ref_mean.detach()).square().flatten(1).mean(1) / (2 * scale_B.square())


def _clipped(log_ratio_B: Tensor, advantage_B: Tensor, config: FlowGrpoConfig) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the loss and, detached, the ratio, the rows that the clip stopped, and the rows that overflowed."""
    advantage_B = advantage_B.to(log_ratio_B).clamp(-config.advantage_clip, config.advantage_clip)
    overflow_B = log_ratio_B.detach() > LARGEST_LOG_RATIO
    # Replaced before exp: masking afterwards would still multiply a gradient of 0 by an infinite slope.
    ratio_B = torch.where(overflow_B, torch.zeros_like(log_ratio_B), log_ratio_B).exp()
    bounded_B = ratio_B.clamp(1 - config.clip, 1 + config.clip)
    loss_B = torch.maximum(-advantage_B * ratio_B, -advantage_B * bounded_B)
    loss_B = torch.where(overflow_B, -advantage_B * (1 + config.clip), loss_B)
    ratio_B = torch.where(overflow_B, torch.full_like(ratio_B, LARGEST_LOG_RATIO).exp(), ratio_B).detach()
    above_B = (advantage_B > 0) & (ratio_B > 1 + config.clip)
    below_B = (advantage_B < 0) & (ratio_B < 1 - config.clip)
    return loss_B, ratio_B, above_B | below_B, overflow_B
