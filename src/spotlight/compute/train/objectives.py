"""From rows to losses: each objective runs the forwards that its loss needs, through the one velocity function.

A row is compared with the policy that drew its sample. For stale rows NFT's anchor is `before`; Flow-GRPO's old
log-probabilities are the recorded ones for all rows. If stale rows are clipped too often (`ClipWatch`), Flow-GRPO clips
them around `start` and weights them instead. Invariant: if the two versions are equal, staleness has no effect
(tests/unit/test_stale_samples.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from spotlight.compute.models.adapter import Adapter, ConditionBatch
from spotlight.compute.rollout import samplers
from spotlight.compute.rollout.denoise import recorded_steps
from spotlight.compute.rollout.noise import normals
from spotlight.compute.train.clip_watch import ClipWatch
from spotlight.compute.train.config import LOG_PROB_GAP, AlgorithmConfig, FlowGrpoConfig, NftConfig
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.losses.flow_grpo import flow_grpo_loss, log_ratio
from spotlight.compute.train.losses.nft import nft_loss, noised, preference
from spotlight.compute.train.weight_sets import WeightSet, WeightSets
from spotlight.control.pipeline import staleness
from spotlight.control.pipeline.tsp import Pair
from spotlight.core.errors import ConfigError
from spotlight.core.rng import Purpose, derive_key, generator
from spotlight.core.types import Sample, Sampling, Size

NO_SETS: frozenset[WeightSet] = frozenset()


@dataclass(frozen=True)
class LossRows:
    """Per-row losses with their gradient, and figures for the log: one value for each row that a figure covers."""

    loss_B: Tensor
    figures: Mapping[str, Tensor]


class Objective(Protocol):
    """A loss and the weight sets that it needs."""

    weight_sets: frozenset[WeightSet]
    state: Mapping[str, Tensor]
    """State beside the weights that later updates depend on; saved, and restored in place."""

    def places(self, samples: Sequence[Sample]) -> list[int]:
        """Number of trained timesteps of each sample."""

    def frozen(self, stale: Sequence[bool]) -> frozenset[WeightSet]:
        """Weight sets whose forward depends on which rows of a batch are stale."""

    def rows(
        self,
        adapter: Adapter,
        sets: WeightSets,
        experience: Experience,
        rows: Sequence[Pair],
        also: frozenset[WeightSet] = NO_SETS,
    ) -> LossRows:
        """Losses of these rows; `also` names sets of `frozen` whose forward must run even if no row needs it."""

    def after_step(self, figures: Mapping[str, float]) -> None:
        """Update the state after an optimizer step; `figures` are the means over its rows."""

    def after_iteration(self) -> None:
        """Update the state after the last optimizer step of an iteration."""


def objective(config: AlgorithmConfig, run_seed: int, takes_stale: bool = False, on_gpu: bool = False) -> Objective:
    """Build the objective; `takes_stale` allows samples of the previous version, which it treats separately."""
    if isinstance(config, NftConfig):
        return NftObjective(config, run_seed, takes_stale)
    return FlowGrpoObjective(config, takes_stale, config.recomputes(on_gpu))


class NftObjective:
    """Noise each finished sample to a few of its timesteps; compare theta with the policy that drew the sample."""

    def __init__(self, config: NftConfig, run_seed: int, takes_stale: bool = False) -> None:
        self.config = config
        self.run_seed = run_seed
        self.takes_stale = takes_stale
        references = {WeightSet.REFERENCE} if config.kl_weight > 0 else set()
        befores = {WeightSet.BEFORE} if takes_stale else set()
        self.weight_sets = frozenset({WeightSet.OLD, *references, *befores})
        self.state: Mapping[str, Tensor] = {}

    def places(self, samples: Sequence[Sample]) -> list[int]:
        return [min(self.config.timesteps_per_sample, sample.sampling.steps) for sample in samples]

    def frozen(self, stale: Sequence[bool]) -> frozenset[WeightSet]:
        return frozenset(WeightSet.BEFORE if self.takes_stale and one else WeightSet.OLD for one in stale)

    def rows(
        self,
        adapter: Adapter,
        sets: WeightSets,
        experience: Experience,
        rows: Sequence[Pair],
        also: frozenset[WeightSet] = NO_SETS,
    ) -> LossRows:
        sampling = experience.rollout.samples[0].sampling
        index = _index(rows, adapter.device)
        x0 = experience.rollout.x0_BSC[index]
        sigma_B = self._timesteps(experience, rows, adapter.schedule(sampling.size, sampling.steps)).to(x0)
        x_t = noised(x0, self._noise(experience, rows, x0.shape[1:]).to(x0), sigma_B)
        inputs = _inputs(experience, index, x_t, sigma_B)
        stale_B = _stale(experience, rows, self.takes_stale, adapter.device)
        v_old = _anchor(adapter, sets, inputs, stale_B, also)
        v_ref = _frozen(adapter, sets, WeightSet.REFERENCE, inputs) if self.config.kl_weight > 0 else None
        v_theta = inputs.velocity(adapter)
        r_B = preference(experience.advantage_B[index], self.config.advantage_clip)
        terms = nft_loss(v_theta, v_old, x_t, x0, sigma_B, r_B, self.config, v_ref)
        figures = {"drift": terms.drift_B, "kl": terms.kl_B}
        if self.takes_stale:
            figures |= {
                staleness.DRIFT_FRESH: terms.drift_B[~stale_B],
                staleness.DRIFT_STALE: terms.drift_B[stale_B],
                staleness.STALE_SHARE: stale_B.float(),
            }
        return LossRows(terms.loss_B, figures)

    def after_step(self, figures: Mapping[str, float]) -> None:
        """Do nothing: NFT has no state."""

    def after_iteration(self) -> None:
        """Do nothing: NFT has no state."""

    def _timesteps(self, experience: Experience, rows: Sequence[Pair], sigmas: Tensor) -> Tensor:
        """Sigmas at distinct steps of each sample's schedule, chosen by the sample's identity."""
        orders: dict[int, np.ndarray] = {}
        for sample in {row.sample for row in rows}:
            rng = generator(self._key(Purpose.TRAIN_TIMESTEP, experience, sample))
            orders[sample] = rng.permutation(len(sigmas) - 1)
        return sigmas[torch.tensor([int(orders[row.sample][row.place]) for row in rows])]

    def _noise(self, experience: Experience, rows: Sequence[Pair], shape: torch.Size) -> Tensor:
        keys = [self._key(Purpose.TRAIN_NOISE, experience, row.sample, row.place) for row in rows]
        return normals(keys, shape)

    def _key(self, purpose: Purpose, experience: Experience, sample: int, *parts: int) -> int:
        identity: Sample = experience.rollout.samples[sample]
        return derive_key(purpose, self.run_seed, identity.prompt, identity.seed, experience.iteration, *parts)


class FlowGrpoObjective:
    """Replay each window step from its recorded latents; compare log-probs with those of the policy that drew it."""

    def __init__(self, config: FlowGrpoConfig, takes_stale: bool = False, recomputes: bool = False) -> None:
        """`recomputes`: take the old log-probs of fresh rows from the training forward, not from the record."""
        self.config = config
        self.takes_stale = takes_stale
        self.recomputes = recomputes
        references = {WeightSet.REFERENCE} if config.kl_weight > 0 else set()
        starts = {WeightSet.START} if takes_stale or recomputes else set()
        self.weight_sets = frozenset({*references, *starts})
        self._watch = ClipWatch()
        self._stepped = torch.zeros((), dtype=torch.int64)
        """Optimizer steps of this iteration: at 0 theta is the policy that drew the fresh rows."""
        self.state: Mapping[str, Tensor] = {"stepped": self._stepped}
        if takes_stale:
            self.state = {**self.state, "clip_fractions": self._watch.running_2}

    def places(self, samples: Sequence[Sample]) -> list[int]:
        places = [recorded_steps(sample.sampling) for sample in samples]
        if not all(places):
            raise ConfigError(
                "Flow-GRPO has samples without an SDE window, so they have no trainable step; set rollout.sampler and "
                "rollout.window_size, or use algorithm nft."
            )
        return places

    def frozen(self, stale: Sequence[bool]) -> frozenset[WeightSet]:
        return frozenset({WeightSet.START} if self.takes_stale and self._watch.decouples and any(stale) else ())

    def rows(
        self,
        adapter: Adapter,
        sets: WeightSets,
        experience: Experience,
        rows: Sequence[Pair],
        also: frozenset[WeightSet] = NO_SETS,
    ) -> LossRows:
        steps = _WindowSteps.of(adapter, experience, rows)
        stale_B = _stale(experience, rows, self.takes_stale, adapter.device)
        ref_mean = None
        if self.config.kl_weight > 0:
            ref_mean = steps.transition(_frozen(adapter, sets, WeightSet.REFERENCE, steps.inputs)).mean
        proximal_B = self._proximal(adapter, sets, steps, stale_B, also)
        gap_B = torch.empty(0)
        if self._stepped and self.recomputes:
            first = steps.transition(_frozen(adapter, sets, WeightSet.START, steps.inputs))
            steps = steps.relative_to(first, ~stale_B)
        current = steps.transition(steps.inputs.velocity(adapter))
        if not self._stepped:
            gap_B = (steps.log_prob(current).detach() - steps.old_log_prob_B).abs()[~stale_B]
            steps = steps.relative_to(current, ~stale_B) if self.recomputes else steps
        terms = flow_grpo_loss(
            steps.log_prob(current),
            steps.old_log_prob_B,
            experience.advantage_B[_index(rows, adapter.device)],
            self.config,
            current=current,
            x_next=steps.x_next,
            old_mean=steps.old_mean,
            ref_mean=ref_mean,
            proximal_B=proximal_B,
        )
        figures = {
            "ratio_deviation": (terms.ratio_B - 1).abs(),
            "clip_fraction": terms.clipped_B.float(),
            "approx_kl": terms.approx_kl_B,
            "overflow": terms.overflow_B.float(),
            "kl": terms.kl_B,
            LOG_PROB_GAP: gap_B,
        }
        if self.takes_stale:
            figures |= {
                staleness.CLIPPED_FRESH: terms.strayed_B[~stale_B].float(),
                staleness.CLIPPED_STALE: terms.strayed_B[stale_B].float(),
                staleness.STALE_SHARE: stale_B.float(),
                staleness.DECOUPLED_SHARE: (stale_B & (proximal_B is not None)).float(),
            }
        return LossRows(terms.loss_B, figures)

    def after_step(self, figures: Mapping[str, float]) -> None:
        self._watch.update(figures)
        self._stepped.add_(1)

    def after_iteration(self) -> None:
        self._stepped.zero_()

    def _proximal(
        self, adapter: Adapter, sets: WeightSets, steps: "_WindowSteps", stale_B: Tensor, also: frozenset[WeightSet]
    ) -> Tensor | None:
        """Log-ratio of the iteration's first weights to those that drew the row, 0 for fresh rows; None if unused."""
        if not (self.takes_stale and self._watch.decouples and bool(stale_B.any())):
            if WeightSet.START in also:
                _run_one_row(adapter, sets, WeightSet.START, steps.inputs)
            return None
        stale = steps.rows(stale_B)
        start = stale.transition(_frozen(adapter, sets, WeightSet.START, stale.inputs))
        proximal_B = torch.zeros(len(stale_B), dtype=torch.float64, device=stale_B.device)
        proximal_B[stale_B] = log_ratio(
            stale.log_prob(start),
            stale.old_log_prob_B,
            self.config,
            current=start,
            x_next=stale.x_next,
            old_mean=stale.old_mean,
        )
        return proximal_B


@dataclass(frozen=True)
class _Inputs:
    """Inputs of a forward."""

    x_BSC: Tensor
    sigma_B: Tensor
    cond: ConditionBatch
    uncond: ConditionBatch | None
    guidance: float
    size: Size

    def velocity(self, adapter: Adapter) -> Tensor:
        return adapter.velocity(self.x_BSC, self.sigma_B, self.cond, self.uncond, self.guidance, self.size)

    def rows(self, index: Tensor) -> "_Inputs":
        uncond = None if self.uncond is None else self.uncond.rows(index)
        return _Inputs(self.x_BSC[index], self.sigma_B[index], self.cond.rows(index), uncond, self.guidance, self.size)


@dataclass(frozen=True, kw_only=True)
class _WindowSteps:
    """Recorded window steps, one per row; `transition` repeats them with another velocity."""

    inputs: _Inputs
    next_B: Tensor
    sigma_second: float
    sampling: Sampling
    x_next: Tensor
    old_log_prob_B: Tensor
    old_mean: Tensor

    @classmethod
    def of(cls, adapter: Adapter, experience: Experience, rows: Sequence[Pair]) -> "_WindowSteps":
        rollout = experience.rollout
        sampling = rollout.samples[0].sampling
        sigmas = adapter.schedule(sampling.size, sampling.steps)
        steps = torch.tensor([rollout.samples[row.sample].sampling.window.start + row.place for row in rows])
        index = _index(rows, adapter.device)
        place = torch.tensor([row.place for row in rows], device=adapter.device)
        x = rollout.path_BKSC[index, place]
        return cls(
            inputs=_inputs(experience, index, x, sigmas[steps].to(x)),
            next_B=sigmas[steps + 1].to(x),
            sigma_second=float(sigmas[1]),
            sampling=sampling,
            x_next=rollout.path_BKSC[index, place + 1],
            old_log_prob_B=rollout.log_prob_BK[index, place],
            old_mean=rollout.mean_BKSC[index, place],
        )

    def rows(self, index: Tensor) -> "_WindowSteps":
        return _WindowSteps(
            inputs=self.inputs.rows(index),
            next_B=self.next_B[index],
            sigma_second=self.sigma_second,
            sampling=self.sampling,
            x_next=self.x_next[index],
            old_log_prob_B=self.old_log_prob_B[index],
            old_mean=self.old_mean[index],
        )

    def relative_to(self, policy: samplers.Transition, chosen_B: Tensor) -> "_WindowSteps":
        """The same steps with old log-probs and means of this policy in the chosen rows."""
        return replace(
            self,
            old_log_prob_B=torch.where(chosen_B, self.log_prob(policy).detach(), self.old_log_prob_B),
            old_mean=torch.where(chosen_B.reshape(-1, 1, 1), policy.mean.detach(), self.old_mean),
        )

    def transition(self, v: Tensor) -> samplers.Transition:
        x, sigma_B = self.inputs.x_BSC, self.inputs.sigma_B
        chosen = self.sampling
        return samplers.transition(chosen.sampler, x, v, sigma_B, self.next_B, self.sigma_second, chosen.noise_level)

    def log_prob(self, given: samplers.Transition) -> Tensor:
        return samplers.log_prob(self.sampling.sampler, self.x_next, given)


def _anchor(adapter: Adapter, sets: WeightSets, inputs: _Inputs, stale_B: Tensor, also: frozenset[WeightSet]) -> Tensor:
    """Velocity of the policy that drew each row; a batch of fresh and stale rows takes one forward of each kind."""
    v_old: Tensor | None = None
    for which, drew_B in ((WeightSet.OLD, ~stale_B), (WeightSet.BEFORE, stale_B)):
        if bool(drew_B.all()):
            v_old = _frozen(adapter, sets, which, inputs)
        elif bool(drew_B.any()):
            v_drew = _frozen(adapter, sets, which, inputs.rows(drew_B))
            v_old = v_drew.new_empty(len(drew_B), *v_drew.shape[1:]) if v_old is None else v_old
            v_old[drew_B] = v_drew
        elif which in also:
            _run_one_row(adapter, sets, which, inputs)
    assert v_old is not None
    return v_old


def _run_one_row(adapter: Adapter, sets: WeightSets, which: WeightSet, inputs: _Inputs) -> None:
    """Take part in a forward that another rank needs."""
    _frozen(adapter, sets, which, inputs.rows(torch.zeros(1, dtype=torch.int64, device=inputs.x_BSC.device)))


@torch.no_grad()
def _frozen(adapter: Adapter, sets: WeightSets, which: WeightSet, inputs: _Inputs) -> Tensor:
    """Velocity of another weight set; call it before the trained forward (see weight_sets)."""
    with sets.using(which):
        return inputs.velocity(adapter)


def _stale(experience: Experience, rows: Sequence[Pair], takes_stale: bool, device: torch.device) -> Tensor:
    return torch.tensor([takes_stale and experience.is_stale(row.sample) for row in rows], device=device)


def _index(rows: Sequence[Pair], device: torch.device) -> Tensor:
    return torch.tensor([row.sample for row in rows], device=device)


def _inputs(experience: Experience, index: Tensor, x_BSC: Tensor, sigma_B: Tensor) -> _Inputs:
    sampling = experience.rollout.samples[0].sampling
    uncond = None if experience.uncond is None else experience.uncond.rows(index)
    return _Inputs(x_BSC, sigma_B, experience.cond.rows(index), uncond, sampling.guidance, sampling.size)
