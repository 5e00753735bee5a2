"""Group advantages: a sample's reward minus its group's mean, in units of a chosen standard deviation.

For selected seeds, a `baseline` may replace the group's mean: an estimate of the mean over all seeds of the prompt
(`explore/seeds.py`). It moves the centre only. The group's std is then the root mean square about it, which is
never smaller than the distance between the two; the other stds do not change.

Several rewards are added up before (`Combine.SUM`), or each has its own advantages, which are added up
(`decoupled_advantages`).

Invariants (tests/unit/test_advantage.py, tests/unit/test_decoupled_advantage.py,
tests/property/test_advantage_property.py): every std is the population std (ddof 0); sums are exactly rounded, so the
order of samples, groups and rewards never changes a bit; a sample without a usable reward changes nothing for its
siblings.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from spotlight.core.errors import ConfigError

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

LARGEST_REWARD = 1e100
"""Largest reward that counts as finite: the square of a larger one could overflow and affect the whole group."""


class StdMode(StrEnum):
    """The standard deviation that divides r - mean of the group."""

    GROUP = "group"
    """The group's own std; groups of low and high contrast have equal weight."""
    LAGGED = "lagged"
    """Within-group std, pooled over earlier iterations; available before the iteration's first reward."""
    ITERATION = "iteration"
    """Std of all rewards of the iteration about their common mean; needs every group."""


class Combine(StrEnum):
    """How several rewards make one advantage."""

    SUM = "sum"
    """The advantage of the weighted sum of the rewards: one of a large scale decides."""
    GDPO = "gdpo"
    """The weighted sum of the advantages of each reward, so that all scales are equal."""


class GroupOutcome(StrEnum):
    """Usability of a group."""

    USABLE = "usable"
    ZERO_VARIANCE = "zero_variance"
    TOO_FEW_FINITE = "too_few_finite"


@dataclass(frozen=True)
class GroupAdvantages:
    """One group's advantages by sample; a sample with `kept` False must not be trained on.

    `mean` is the centre, `std` the divisor before eps. `problems` are sentences for the user, empty if every reward is
    finite.
    """

    advantages: Floats
    kept: Bools
    mean: float
    std: float
    outcome: GroupOutcome
    problems: tuple[str, ...] = ()


class LaggedStd(msgspec.Struct, frozen=True, kw_only=True):
    """Running within-group std of earlier iterations, an average whose memory is 1 / (1 - decay) iterations.

    It is constant during an iteration; `updated` returns the one for the next.
    """

    decay: float = 0.9
    variance_sum: float = 0.0
    weight_sum: float = 0.0

    @property
    def std(self) -> float | None:
        """The std; None before the first iteration with contrast."""
        return math.sqrt(self.variance_sum / self.weight_sum) if self.weight_sum > 0 else None

    def updated(self, rewards_by_group: Sequence[Floats]) -> "LaggedStd":
        """Return the std with one more iteration; an iteration without contrast does not change it."""
        variance = pooled_within_group_std(rewards_by_group) ** 2
        if variance == 0:
            return self
        return LaggedStd(
            decay=self.decay,
            variance_sum=self.decay * self.variance_sum + (1 - self.decay) * variance,
            weight_sum=self.decay * self.weight_sum + (1 - self.decay),
        )


def group_advantages(
    rewards_by_group: Sequence[Floats],
    *,
    std_mode: StdMode,
    eps: float,
    lagged_std: float | None = None,
    baselines: Sequence[float | None] | None = None,
) -> list[GroupAdvantages]:
    """Return (r - mean of the group) / (std + eps), one result per group in order.

    `baselines` replace the means of groups; None, for all or for one group: the mean.
    With LAGGED and no `lagged_std`, the pooled within-group std of the given groups is used; as with ITERATION, all
    groups of the iteration must be given.
    """
    rewards_by_group = _as_floats(rewards_by_group)
    _check(rewards_by_group, eps, lagged_std)
    shared: float | None = None
    if std_mode is StdMode.ITERATION:
        shared = _std(np.concatenate([scored(rewards) for rewards in rewards_by_group] or [np.empty(0)]))
    elif std_mode is StdMode.LAGGED:
        shared = pooled_within_group_std(rewards_by_group) if lagged_std is None else lagged_std
    centres = [None] * len(rewards_by_group) if baselines is None else baselines
    return [
        _one_group(index, rewards, shared, eps, centre)
        for index, (rewards, centre) in enumerate(zip(rewards_by_group, centres, strict=True))
    ]


def decoupled_advantages(
    rewards: Mapping[str, Sequence[Floats]],
    weights: Mapping[str, float],
    *,
    std_mode: StdMode,
    eps: float,
    lagged_stds: Mapping[str, float | None],
    baselines: Mapping[str, Sequence[float | None] | None],
) -> list[GroupAdvantages]:
    """Return the weighted sum of each reward's advantages over the norm of the weights, one result per group in order.

    GDPO (arXiv 2601.05242) divides that sum by its std over the batch, so that its scale does not grow with the number
    of rewards. The norm of the weights serves the same end, exactly where rewards are uncorrelated, and is known before
    the batch is complete. A sample without one of its rewards is left out of all. `mean` and `std` of a result are the
    weighted sum of the centres and the norm of the weights.
    """
    columns = {name: _as_floats(groups) for name, groups in rewards.items()}
    gaps = [
        ~np.logical_and.reduce([_is_finite(part) for part in parts]) for parts in zip(*columns.values(), strict=True)
    ]
    for name, groups in columns.items():
        columns[name] = [np.where(gap, np.nan, group) for group, gap in zip(groups, gaps, strict=True)]
    norm = math.sqrt(math.fsum(weights[name] ** 2 for name in columns))
    found = {
        name: group_advantages(
            groups, std_mode=std_mode, eps=eps, lagged_std=lagged_stds.get(name), baselines=baselines.get(name)
        )
        for name, groups in columns.items()
    }
    return [
        _weighted_sum({name: groups[index] for name, groups in found.items()}, weights, norm)
        for index in range(len(gaps))
    ]


def comparable_groups(rewards_by_group: Sequence[Floats]) -> int:
    """Number of groups with at least two finite rewards, which a comparison needs."""
    return sum(scored(rewards).size >= 2 for rewards in _as_floats(rewards_by_group))


def pooled_within_group_std(rewards_by_group: Sequence[Floats]) -> float:
    """RMS of r - mean of its group, over the groups with at least two finite rewards; 0 without such groups."""
    finite_groups = [scored(rewards) for rewards in _as_floats(rewards_by_group)]
    squares = [square for finite in finite_groups if finite.size >= 2 for square in _deviations(finite) ** 2]
    return math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0


def _one_group(
    index: int, rewards: Floats, shared_std: float | None, eps: float, baseline: float | None
) -> GroupAdvantages:
    kept = _is_finite(rewards)
    finite = rewards[kept]
    advantages = np.zeros(rewards.shape, dtype=np.float64)
    problems = _problems(index, rewards, kept)
    if finite.size < 2:
        mean = float(finite[0]) if finite.size else math.nan
        return GroupAdvantages(advantages, np.zeros_like(kept), mean, 0.0, GroupOutcome.TOO_FEW_FINITE, problems)
    deviations = _deviations(finite) if baseline is None else finite - baseline
    std = _root_mean_square(deviations) if shared_std is None else shared_std
    outcome = GroupOutcome.USABLE if deviations.any() else GroupOutcome.ZERO_VARIANCE
    if outcome is GroupOutcome.USABLE:
        advantages[kept] = deviations / (std + eps)
    mean = _mean(finite) if baseline is None else baseline
    return GroupAdvantages(advantages, kept, mean, std, outcome, problems)


def _weighted_sum(parts: Mapping[str, GroupAdvantages], weights: Mapping[str, float], norm: float) -> GroupAdvantages:
    # The same samples are missing from every part, so kept, problems and too few samples are those of any.
    first = next(iter(parts.values()))
    columns = zip(*(weights[name] * part.advantages for name, part in parts.items()), strict=True)
    advantages = np.array([math.fsum(column) / norm for column in columns])
    outcome = first.outcome
    if outcome is not GroupOutcome.TOO_FEW_FINITE:
        outcomes = {part.outcome for name, part in parts.items() if weights[name]}
        outcome = GroupOutcome.USABLE if GroupOutcome.USABLE in outcomes else GroupOutcome.ZERO_VARIANCE
    return GroupAdvantages(
        advantages,
        first.kept,
        math.fsum(weights[name] * part.mean for name, part in parts.items()),
        norm,
        outcome,
        first.problems,
    )


def _problems(index: int, rewards: Floats, kept: Bools) -> tuple[str, ...]:
    dropped = np.flatnonzero(~kept)
    if not dropped.size:
        return ()
    which = ", ".join(f"sample {i}: {rewards[i]}" for i in dropped)
    rest = "are trained on" if int(kept.sum()) >= 2 else "are dropped, because a baseline needs two samples"
    return (
        f"Group {index} has {dropped.size} of {rewards.size} rewards that are not finite ({which}), so "
        f"these samples are not trained on and the others {rest}; check the reward.",
    )


def _check(rewards_by_group: Iterable[Floats], eps: float, lagged_std: float | None) -> None:
    for index, rewards in enumerate(rewards_by_group):
        if rewards.ndim != 1 or rewards.size < 2:
            raise ConfigError(
                f"Group {index} has rewards of shape {rewards.shape}, but an advantage compares at least 2 "
                "samples of one prompt; raise the group size to 2 or more."
            )
    if not 0 < eps < math.inf:
        raise ConfigError(f"The advantage eps is {eps}, but a divisor must be positive and finite; use 1e-4.")
    if lagged_std is not None and not 0 < lagged_std < math.inf:
        raise ConfigError(
            f"The lagged std is {lagged_std}, but a scale is positive and finite; pass LaggedStd.std, which"
            " is None until there is one."
        )


def _as_floats(rewards_by_group: Sequence[Floats]) -> list[Floats]:
    return [np.asarray(rewards, dtype=np.float64) for rewards in rewards_by_group]


def _is_finite(rewards: Floats) -> Bools:
    # A comparison with NaN is False, so this covers NaN and both infinities.
    return np.asarray(np.abs(rewards) <= LARGEST_REWARD, dtype=np.bool_)


def scored(rewards: Floats) -> Floats:
    """Return the finite rewards, in order."""
    return rewards[_is_finite(rewards)]


def _mean(rewards: Floats) -> float:
    return math.fsum(rewards) / rewards.size


def _deviations(rewards: Floats) -> Floats:
    # Equal rewards must give exactly 0, though their rounded mean may differ from them by one ulp.
    if rewards.size == 0 or rewards.min() == rewards.max():
        return np.zeros_like(rewards)
    return rewards - _mean(rewards)


def _std(rewards: Floats) -> float:
    return _root_mean_square(_deviations(rewards))


def _root_mean_square(deviations: Floats) -> float:
    return math.sqrt(math.fsum(deviations**2) / deviations.size) if deviations.size else 0.0
