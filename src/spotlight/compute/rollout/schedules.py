"""Sigma schedules: pure functions of the step count (and image tokens) that return sigmas[steps + 1] in fp32.

Invariant: sigmas[0] is exactly 1, sigmas[-1] exactly 0, strictly falling. The schedules of published models
come from diffusers' own scheduler, configured as in the model's pipeline, because weights are tuned to its
details: SD3's smallest sigma, for example, is shifted twice.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spotlight.core.errors import ConfigError

QWEN_TERMINAL = 0.02
"""Last sigma before 0, to which Qwen-Image stretches its schedule."""


def qwen_image(seq_len: int, steps: int) -> Tensor:
    """Qwen-Image at `seq_len` image tokens, (height/16) * (width/16)."""
    if steps < 2:
        raise ConfigError(
            f"A Qwen-Image schedule cannot have {steps} step, because its stretch to a last sigma of "
            f"{QWEN_TERMINAL} needs a first and a last step; use 2 steps or more."
        )
    mu = _resolution_shift(seq_len, base_shift=0.5, max_shift=0.9, base_len=256, max_len=8192)
    return _dynamic(steps, mu, shift_terminal=QWEN_TERMINAL)


def flux(seq_len: int, steps: int) -> Tensor:
    """FLUX.1-dev at `seq_len` image tokens, (height/16) * (width/16)."""
    _check_steps(steps)
    mu = _resolution_shift(seq_len, base_shift=0.5, max_shift=1.15, base_len=256, max_len=4096)
    return _dynamic(steps, mu, shift_terminal=None)


def sd3(steps: int, shift: float = 3.0) -> Tensor:
    """Stable Diffusion 3 and 3.5: a static shift, whatever the resolution."""
    from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler

    _check_steps(steps)
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(steps)
    return _checked(scheduler.sigmas)


def linear(steps: int, shift: float = 1.0) -> Tensor:
    """Equal steps, for the tiny pixel families; a `shift` above 1 moves them to high noise."""
    _check_steps(steps)
    if not 0 < shift < float("inf"):
        raise ConfigError(
            f"The schedule shift is {shift}, but only a positive finite shift keeps sigmas between 1 and 0; "
            "use 1 for equal steps."
        )
    sigmas = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    return _checked((shift * sigmas / (1 + (shift - 1) * sigmas)).float())


def _dynamic(steps: int, mu: float, shift_terminal: float | None) -> Tensor:
    from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift_terminal=shift_terminal)
    unshifted: Sequence[float] = np.linspace(1.0, 1.0 / steps, steps).tolist()
    scheduler.set_timesteps(sigmas=unshifted, mu=mu)
    return _checked(scheduler.sigmas)


def _resolution_shift(seq_len: int, base_shift: float, max_shift: float, base_len: int, max_len: int) -> float:
    """Return mu, linear in the number of image tokens; each pipeline computes it outside its scheduler."""
    if seq_len < 1:
        raise ConfigError(
            f"A schedule cannot be for {seq_len} image tokens, because an image has at least 1; check the image size."
        )
    return base_shift + (max_shift - base_shift) * (seq_len - base_len) / (max_len - base_len)


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise ConfigError(
            f"A schedule cannot have {steps} steps, because denoising takes at least 1; use 1 step or more."
        )


def _checked(sigmas: Tensor) -> Tensor:
    # The samplers compare sigma with exactly 1; a value just below would silently take the singular branch.
    if sigmas[0] != 1 or sigmas[-1] != 0 or not bool((sigmas.diff() < 0).all()):
        raise ConfigError(
            f"The schedule {sigmas.tolist()} does not fall strictly from exactly 1 to exactly 0, which the "
            "samplers rely on; use another number of steps or another shift."
        )
    return sigmas
