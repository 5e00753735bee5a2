"""From noise to finished samples: the denoising loop over one batch of one size.

Invariant: a sample's latents depend on its identity and the weights alone, not on its neighbours' seeds or windows
(tests/unit/test_denoise.py). On CPU that is exact in batches of a multiple of 4; in others BLAS computes the last rows
by another kernel, so a sample's position in the batch moves its last bits. Latents, sigmas and log-probs are fp32
throughout; inside its window a sample records the tensors that training needs for an exact replay.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from spotlight.compute.models.adapter import Adapter, ConditionBatch
from spotlight.compute.rollout import samplers
from spotlight.compute.rollout.noise import initial_noise
from spotlight.compute.rollout.step import Drawn, RowPlace, advance
from spotlight.core.errors import ConfigError, Diverged
from spotlight.core.types import Sample, Sampling, Window


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """Finished samples; K is the window size, 0 without an SDE window."""

    samples: tuple[Sample, ...]
    x0_BSC: Tensor
    path_BKSC: Tensor
    """Latents before each window step and after the last one: K + 1 of them."""
    log_prob_BK: Tensor
    mean_BKSC: Tensor


@torch.no_grad()
def roll_out(
    adapter: Adapter,
    samples: Sequence[Sample],
    cond: ConditionBatch,
    uncond: ConditionBatch | None,
    run_seed: int,
) -> Rollout:
    """Denoise one batch; the samplings of all samples differ only in the window's start."""
    sampling = _common_sampling(samples)
    check_guidance(samples, uncond)
    shape = adapter.latent_shape(sampling.size)
    sigmas = adapter.schedule(sampling.size, sampling.steps).tolist()
    x = initial_noise(run_seed, samples, shape).to(adapter.device)
    record = _WindowRecord(len(samples), recorded_steps(sampling), shape, adapter.device)
    velocity: Sequence[Tensor | None] = [None] * len(samples)
    for step in range(sampling.steps):
        places = [RowPlace(sample, step, sigmas, run_seed, v) for sample, v in zip(samples, velocity, strict=True)]
        advanced = advance(adapter, x, places, cond, uncond, rows=len(samples))
        for drawn in advanced.drawn:
            record.store([step - samples[row].sampling.window.start for row in drawn.rows], drawn)
        x, velocity = advanced.x_BSC, advanced.velocity
    check_finite(samples, x)
    return Rollout(
        samples=tuple(samples),
        x0_BSC=x,
        path_BKSC=record.path,
        log_prob_BK=record.log_prob,
        mean_BKSC=record.mean,
    )


class _WindowRecord:
    """Preallocated tensors of the window steps, filled row by row as samples pass through their windows."""

    def __init__(self, rows: int, size: int, shape: tuple[int, int], device: torch.device) -> None:
        self.path = torch.zeros(rows, size + 1 if size else 0, *shape, device=device)
        self.mean = torch.zeros(rows, size, *shape, device=device)
        self.log_prob = torch.zeros(rows, size, device=device)

    def store(self, places: list[int], drawn: Drawn) -> None:
        at = (torch.tensor(drawn.rows, device=self.path.device), torch.tensor(places, device=self.path.device))
        self.path[at] = drawn.before_RSC
        self.path[at[0], at[1] + 1] = drawn.after_RSC
        self.mean[at] = drawn.mean_RSC
        self.log_prob[at] = drawn.log_prob_R


def check_guidance(samples: Sequence[Sample], uncond: ConditionBatch | None) -> None:
    """Refuse a mismatch of guidance and `uncond`: adapters apply guidance whenever `uncond` is given."""
    for guidance in {sample.sampling.guidance for sample in samples}:
        if (guidance != 1.0) != (uncond is not None):
            raise ConfigError(
                f"samples with guidance {guidance} have {'no' if uncond is None else 'an'} unconditional batch, but "
                "an adapter applies guidance whenever there is one; pass it for a guidance other than 1, and None "
                "for 1."
            )


def recorded_steps(sampling: Sampling) -> int:
    """K: number of steps that a rollout with this sampling records; the ODE ignores the window."""
    return sampling.window.size if sampling.sampler.draws_noise else 0


def check_window(sampling: Sampling) -> None:
    """Refuse a window with a step that cannot be trained on."""
    window = sampling.window
    drawn = range(window.start, window.stop) if sampling.sampler.draws_noise else ()
    if not all(samplers.trainable(sampling.sampler, step, sampling.steps) for step in drawn):
        raise ConfigError(
            f"a window of {window.size} steps from step {window.start} does not lie between the first of "
            f"{sampling.steps} steps and the last, whose noise is singular; move or shrink it."
        )


def check_finite(samples: Sequence[Sample], x0_BSC: Tensor) -> None:
    """Raise Diverged if a finished sample has non-finite numbers."""
    finite_B = torch.isfinite(x0_BSC).flatten(1).all(1)
    if not bool(finite_B.all()):
        broken = samples[finite_B.tolist().index(False)]
        raise Diverged(
            f"{int((~finite_B).sum())} of {len(samples)} samples have non-finite numbers, the first for prompt "
            f"{broken.prompt}, seed {broken.seed} at version {broken.version}, so the weights are broken or training "
            "diverged; use finite weights, or lower train.lr and run again."
        )


def _common_sampling(samples: Sequence[Sample]) -> Sampling:
    """Return the sampling of a batch; refuses samplings that differ beyond window starts, and untrainable windows."""
    first = samples[0].sampling
    for sample in samples:
        other = sample.sampling
        aligned = msgspec.structs.replace(other, window=Window(first.window.start, other.window.size))
        if aligned != first:
            raise ConfigError(f"one batch holds {first} and {other}; split it, because a batch has one sampling.")
        check_window(other)
    return first
