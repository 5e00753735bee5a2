"""Sampler steps without a model: from (x, v) at sigma to the Gaussian of x at the next sigma.

Conventions: x_sigma = (1-sigma) x0 + sigma eps, v = eps - x0, sigma falls from 1 to 0, so x0 = x - sigma v
and eps = x + (1-sigma) v. Every row of a batch has its own sigma, and a row's result does not depend on its
neighbours (tests/unit/test_samplers.py). All arithmetic is in the dtype of x, float32 or float64; halves are
refused, because rounding x to bf16 alone moves a log-probability by more than the clip range.

The last step (sigma_next = 0) is taken but never trained (`trainable`): CPS has no noise there, and the noise
of the SDEs is so small that a ratio of two policies overflows. Shapes: B batch, S tokens, C channels.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spotlight.core.errors import InputError
from spotlight.core.types import SamplerKind


@dataclass(frozen=True)
class Transition:
    """x_next ~ Normal(mean, std_B^2) for each row.

    `diffusion_B` is g of the SDE, std without sqrt(-dt). CPS is not the discretisation of an SDE and its
    noise has no dt in it, so there it equals `std_B`.
    """

    mean: Tensor
    std_B: Tensor
    diffusion_B: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """Return the next x for a standard normal draw shaped like `mean`."""
        return self.mean + per_row(self.std_B, self.mean) * noise


def per_row(value_B: Tensor, like: Tensor) -> Tensor:
    """Reshape one value per row so that it broadcasts over that row of `like`."""
    return value_B.reshape(-1, *[1] * (like.ndim - 1))


def trainable(kind: SamplerKind, step: int, steps: int) -> bool:
    """Whether a log-probability of this step may enter a loss: the step draws noise and is not the last one."""
    return kind.draws_noise and 0 <= step < steps - 1


def ode_step(x: Tensor, v: Tensor, sigma_B: Tensor, sigma_next_B: Tensor) -> Tensor:
    """Take one Euler step of the probability-flow ODE."""
    _check_dtype(x, v)
    return x + per_row(sigma_next_B.to(x) - sigma_B.to(x), x) * v


def ode2_step(
    x: Tensor, v: Tensor, sigma_B: Tensor, sigma_next_B: Tensor, v_before: Tensor, sigma_before_B: Tensor
) -> Tensor:
    """Take one Adams-Bashforth step of order 2 from this velocity and the previous one, at `sigma_before_B`.

    It needs one forward, as an Euler step does. The first step of a sample has no previous one and is `ode_step`.
    """
    _check_dtype(x, v, v_before)
    sigma = sigma_B.to(x)
    length_B = sigma_next_B.to(x) - sigma
    half_ratio_B = 0.5 * length_B / (sigma - sigma_before_B.to(x))
    return x + per_row(length_B, x) * (v + per_row(half_ratio_B, x) * (v - v_before))


def transition(
    kind: SamplerKind,
    x: Tensor,
    v: Tensor,
    sigma_B: Tensor,
    sigma_next_B: Tensor,
    sigma_second: float,
    noise_level: float,
) -> Transition:
    """Return the Gaussian of the next x.

    `sigma_second` is sigmas[1] of the schedule; `noise_level` is a, and for Dance eta.
    With noise level 0 the mean is the ODE step and std is 0; such a transition can be sampled, but has no
    log-probability.
    """
    _check_dtype(x, v)
    _check_noise_level(kind, noise_level)
    sigma, sigma_next = sigma_B.to(x), sigma_next_B.to(x)
    if kind is SamplerKind.CPS:
        return _cps(x, v, sigma, sigma_next, noise_level)
    if kind is SamplerKind.FLOW_SDE:
        # g is infinite at sigma = 1; the second sigma stands in, in the denominator only.
        finite = torch.where(sigma == 1, torch.full_like(sigma, sigma_second), sigma)
        return _sde(x, v, sigma, sigma_next, noise_level * torch.sqrt(sigma / (1 - finite)))
    return _sde(x, v, sigma, sigma_next, torch.full_like(sigma, noise_level))


def log_prob(kind: SamplerKind, x_next: Tensor, given: Transition) -> Tensor:
    """Return log_prob_B of x_next, averaged over all dimensions of a sample; raises if there is no density.

    CPS uses -(x_next - mean)^2 without 1/(2 std^2) and constants, as published: its ratios are not those of
    the Gaussian, and clip ranges tuned for it depend on that.
    """
    if not kind.draws_noise:
        raise InputError(
            "An ODE step has no log-probability, because it draws no noise and has no density; compute it only "
            "at steps inside the SDE window."
        )
    _check_dtype(x_next, given.mean)
    if not bool((given.std_B > 0).all()):
        raise InputError(
            f"A {kind.value} step with std {given.std_B.tolist()} has no log-probability, because only a "
            "positive std has a density; use a noise level above 0 and leave the last step out of training."
        )
    square_B = (x_next - given.mean).square().flatten(1).mean(1)
    if kind is SamplerKind.CPS:
        return -square_B
    return -square_B / (2 * given.std_B.square()) - given.std_B.log() - 0.5 * math.log(2 * math.pi)


def _sde(x: Tensor, v: Tensor, sigma_B: Tensor, sigma_next_B: Tensor, g_B: Tensor) -> Transition:
    """Flow-SDE and Dance: Euler-Maruyama of the reverse SDE that has the marginals of the ODE."""
    dt_B = sigma_next_B - sigma_B
    correction_B = g_B.square() / (2 * sigma_B)
    x_scale = per_row(1 + correction_B * dt_B, x)
    v_scale = per_row((1 + correction_B * (1 - sigma_B)) * dt_B, x)
    return Transition(x * x_scale + v * v_scale, g_B * torch.sqrt(-dt_B), g_B)


def _cps(x: Tensor, v: Tensor, sigma_B: Tensor, sigma_next_B: Tensor, noise_level: float) -> Transition:
    """Coefficient-preserving sampling: fresh noise replaces a part of the predicted noise."""
    angle = noise_level * math.pi / 2
    std_B = sigma_next_B * math.sin(angle)
    x0 = x - per_row(sigma_B, x) * v
    eps = x + per_row(1 - sigma_B, x) * v
    # sqrt(sigma_next^2 - std^2), without its cancellation.
    kept_B = sigma_next_B * math.cos(angle)
    return Transition(per_row(1 - sigma_next_B, x) * x0 + per_row(kept_B, x) * eps, std_B, std_B)


def _check_dtype(*tensors: Tensor) -> None:
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1 or not dtypes <= {torch.float32, torch.float64}:
        names = ", ".join(sorted(str(dtype) for dtype in dtypes))
        raise TypeError(
            f"A sampler step was given {names}, but trajectories are float32 or float64 throughout, because "
            "lower precision moves log-probabilities by more than the clip range; cast latents and velocity "
            "to float32."
        )


def _check_noise_level(kind: SamplerKind, noise_level: float) -> None:
    if not kind.draws_noise:
        raise InputError(
            "An ODE step has no stochastic transition, because it draws no noise; call ode_step, or choose "
            "flow_sde, dance_sde or cps."
        )
    if not (0 <= noise_level < math.inf):
        raise InputError(
            f"The noise level {noise_level} of {kind.value} is not a finite number of at least 0; choose for "
            "example 0.7."
        )
    if kind is SamplerKind.CPS and noise_level > 1:
        raise InputError(
            f"The noise level {noise_level} of cps is above 1, but 1 already replaces all of the predicted "
            "noise; choose a value from 0 to 1, for example 0.8."
        )
