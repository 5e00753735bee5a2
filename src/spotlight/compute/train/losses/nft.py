"""DiffusionNFT: pull the implicit positive policy towards good samples, the negative one towards bad samples.

With theta = old the gradient is (2r - 1) times that of flow matching on x0, weighted per sample by 1/w and
independent of beta. Losses are per row, in float64, and a row's loss does not depend on its neighbours: any
partition into micro-batches sums to the same gradient (tests/property/test_losses_property.py). B batch, S
tokens, C channels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from spotlight.compute.rollout.samplers import per_row
from spotlight.compute.train.config import NftConfig

SMALLEST_WEIGHT = 1e-5
"""Floor of w, for samples that are predicted exactly."""


@dataclass(frozen=True)
class NftTerms:
    """`loss_B` carries the gradient; the rest is detached and for the log."""

    loss_B: Tensor
    positive_B: Tensor
    """Weighted squared error of the positive policy, before r, beta and the advantage clip."""
    negative_B: Tensor
    """Weighted squared error of the negative policy, likewise."""
    kl_B: Tensor
    """Mean squared distance of velocities from the reference, before its weight; 0 without a reference."""
    drift_B: Tensor
    """Mean squared distance of velocities from old."""


def preference(advantage_B: Tensor, clip: float) -> Tensor:
    """Return r in 0..1: 1/2 at advantage 0, 0 and 1 beyond -clip and +clip."""
    return (advantage_B / clip / 2 + 0.5).clamp(0, 1)


def noised(x0: Tensor, noise: Tensor, t_B: Tensor) -> Tensor:
    """x_t = (1 - t) x0 + t noise, with each row's own t."""
    t = per_row(t_B.to(x0), x0)
    return (1 - t) * x0 + t * noise


def nft_loss(
    v_theta: Tensor,
    v_old: Tensor,
    x_t: Tensor,
    x0: Tensor,
    t_B: Tensor,
    r_B: Tensor,
    config: NftConfig,
    v_ref: Tensor | None = None,
) -> NftTerms:
    """Compute the per-row loss; only `v_theta` receives a gradient. A KL weight above 0 needs `v_ref`."""
    if config.kl_weight > 0 and v_ref is None:
        raise ValueError(
            f"NFT with KL weight {config.kl_weight} needs a reference velocity for that term; pass v_ref, or "
            "set the weight to 0."
        )
    theta = v_theta.double()
    old, clean, noisy = v_old.detach().double(), x0.detach().double(), x_t.detach().double()
    t, r_B = per_row(t_B.to(theta), theta), r_B.to(theta)
    push = config.beta * (theta - old)
    positive_B = _weighted_error(noisy - t * (old + push) - clean)
    negative_B = _weighted_error(noisy - t * (old - push) - clean)
    loss_B = config.advantage_clip * (r_B * positive_B + (1 - r_B) * negative_B) / config.beta
    kl_B = torch.zeros_like(loss_B)
    if v_ref is not None:
        kl_B = _mean_square(theta - v_ref.detach().double())
        loss_B = loss_B + config.kl_weight * kl_B
    return NftTerms(
        loss_B=loss_B,
        positive_B=positive_B.detach(),
        negative_B=negative_B.detach(),
        kl_B=kl_B.detach(),
        drift_B=_mean_square(theta.detach() - old),
    )


def _weighted_error(residual: Tensor) -> Tensor:
    """mean(residual^2) / w per row, with w = mean|residual| held constant: the scale of a sample cancels."""
    weight_B = residual.detach().abs().flatten(1).mean(1).clamp_min(SMALLEST_WEIGHT)
    return _mean_square(residual) / weight_B


def _mean_square(value: Tensor) -> Tensor:
    return value.square().flatten(1).mean(1)
