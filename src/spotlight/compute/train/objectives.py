"""From rows to losses: each objective runs the forwards its loss needs, through the one velocity function."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from spotlight.compute.models.adapter import Adapter, ConditionBatch
from spotlight.compute.rollout import samplers
from spotlight.compute.rollout.noise import normals
from spotlight.compute.train.config import AlgorithmConfig, FlowGrpoConfig, NftConfig
from spotlight.compute.train.experience import Experience, Row
from spotlight.compute.train.losses.flow_grpo import flow_grpo_loss
from spotlight.compute.train.losses.nft import nft_loss, noised, preference
from spotlight.compute.train.weight_sets import WeightSet, WeightSets
from spotlight.core.errors import ConfigError
from spotlight.core.rng import Purpose, derive_key, generator
from spotlight.core.types import Sample


@dataclass(frozen=True)
class LossRows:
    """Per-row losses with their gradient, and per-row figures for the log."""

    loss_B: Tensor
    figures: Mapping[str, Tensor]


class Objective(Protocol):
    """A loss together with the weight sets it needs."""

    weight_sets: frozenset[WeightSet]

    def places(self, experience: Experience) -> int:
        """Trained timesteps per sample."""

    def rows(self, adapter: Adapter, sets: WeightSets, experience: Experience, rows: Sequence[Row]) -> LossRows: ...


def objective(config: AlgorithmConfig, run_seed: int) -> Objective:
    return NftObjective(config, run_seed) if isinstance(config, NftConfig) else FlowGrpoObjective(config)


class NftObjective:
    """Noise each finished sample to a few of its own timesteps; compare theta with old there."""

    def __init__(self, config: NftConfig, run_seed: int) -> None:
        self.config = config
        self.run_seed = run_seed
        references = {WeightSet.REFERENCE} if config.kl_weight > 0 else set()
        self.weight_sets = frozenset({WeightSet.OLD, *references})

    def places(self, experience: Experience) -> int:
        return min(self.config.timesteps_per_sample, experience.rollout.samples[0].sampling.steps)

    def rows(self, adapter: Adapter, sets: WeightSets, experience: Experience, rows: Sequence[Row]) -> LossRows:
        sampling = experience.rollout.samples[0].sampling
        index = _index(rows, adapter.device)
        x0 = experience.rollout.x0_BSC[index]
        sigma_B = self._timesteps(experience, rows, adapter.schedule(sampling.size, sampling.steps)).to(x0)
        x_t = noised(x0, self._noise(experience, rows, x0.shape[1:]).to(x0), sigma_B)
        cond, uncond = _conditions(experience, index)
        arguments = (x_t, sigma_B, cond, uncond, sampling.guidance, sampling.size)
        v_old = _frozen(adapter, sets, WeightSet.OLD, arguments)
        v_ref = _frozen(adapter, sets, WeightSet.REFERENCE, arguments) if self.config.kl_weight > 0 else None
        v_theta = adapter.velocity(*arguments)
        r_B = preference(experience.advantage_B[index], self.config.advantage_clip)
        terms = nft_loss(v_theta, v_old, x_t, x0, sigma_B, r_B, self.config, v_ref)
        return LossRows(terms.loss_B, {"drift": terms.drift_B, "kl": terms.kl_B})

    def _timesteps(self, experience: Experience, rows: Sequence[Row], sigmas: Tensor) -> Tensor:
        """Distinct steps of the sample's own schedule, chosen by its identity."""
        orders: dict[int, np.ndarray] = {}
        for sample in {row.sample for row in rows}:
            rng = generator(self._key(Purpose.TRAIN_TIMESTEP, experience, sample))
            orders[sample] = rng.permutation(len(sigmas) - 1)
        return sigmas[torch.tensor([int(orders[row.sample][row.place]) for row in rows])]

    def _noise(self, experience: Experience, rows: Sequence[Row], shape: torch.Size) -> Tensor:
        keys = [self._key(Purpose.TRAIN_NOISE, experience, row.sample, row.place) for row in rows]
        return normals(keys, shape)

    def _key(self, purpose: Purpose, experience: Experience, sample: int, *parts: int) -> int:
        who: Sample = experience.rollout.samples[sample]
        return derive_key(purpose, self.run_seed, who.prompt, who.seed, experience.iteration, *parts)


class FlowGrpoObjective:
    """Replay each window step from its recorded latents; compare log-probs with the recorded ones."""

    def __init__(self, config: FlowGrpoConfig) -> None:
        self.config = config
        self.weight_sets = frozenset({WeightSet.REFERENCE} if config.kl_weight > 0 else ())

    def places(self, experience: Experience) -> int:
        places = experience.rollout.log_prob_BK.shape[1]
        if not places:
            raise ConfigError(
                "Flow-GRPO was given samples without an SDE window, so there is no step that it could train; set "
                "rollout.sampler and rollout.window_size, or use algorithm nft."
            )
        return places

    def rows(self, adapter: Adapter, sets: WeightSets, experience: Experience, rows: Sequence[Row]) -> LossRows:
        rollout = experience.rollout
        sampling = rollout.samples[0].sampling
        sigmas = adapter.schedule(sampling.size, sampling.steps)
        steps = torch.tensor([rollout.samples[row.sample].sampling.window.start + row.place for row in rows])
        index = _index(rows, adapter.device)
        place = torch.tensor([row.place for row in rows], device=adapter.device)
        x, x_next = rollout.path_BKSC[index, place], rollout.path_BKSC[index, place + 1]
        sigma_B, next_B = sigmas[steps].to(x), sigmas[steps + 1].to(x)
        cond, uncond = _conditions(experience, index)
        arguments = (x, sigma_B, cond, uncond, sampling.guidance, sampling.size)

        def transition(v: Tensor) -> samplers.Transition:
            return samplers.transition(sampling.sampler, x, v, sigma_B, next_B, float(sigmas[1]), sampling.noise_level)

        ref_mean = None
        if self.config.kl_weight > 0:
            ref_mean = transition(_frozen(adapter, sets, WeightSet.REFERENCE, arguments)).mean
        current = transition(adapter.velocity(*arguments))
        terms = flow_grpo_loss(
            samplers.log_prob(sampling.sampler, x_next, current),
            rollout.log_prob_BK[index, place],
            experience.advantage_B[index],
            self.config,
            current=current,
            x_next=x_next,
            old_mean=rollout.mean_BKSC[index, place],
            ref_mean=ref_mean,
        )
        figures = {
            "ratio_deviation": (terms.ratio_B - 1).abs(),
            "clip_fraction": terms.clipped_B.float(),
            "approx_kl": terms.approx_kl_B,
            "overflow": terms.overflow_B.float(),
            "kl": terms.kl_B,
        }
        return LossRows(terms.loss_B, figures)


@torch.no_grad()
def _frozen(
    adapter: Adapter,
    sets: WeightSets,
    which: WeightSet,
    arguments: tuple,
) -> Tensor:
    """Velocity of another weight set; always before the trained forward (see weight_sets)."""
    with sets.using(which):
        return adapter.velocity(*arguments)


def _index(rows: Sequence[Row], device: torch.device) -> Tensor:
    return torch.tensor([row.sample for row in rows], device=device)


def _conditions(experience: Experience, index: Tensor) -> tuple[ConditionBatch, ConditionBatch | None]:
    uncond = None if experience.uncond is None else experience.uncond.rows(index)
    return experience.cond.rows(index), uncond
