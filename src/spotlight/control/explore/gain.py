"""The worth of previews: how prompts vary, what selection gains, and how previews are split over prompts and time.

**Variances.** The variance of a prompt's rewards is that of its own groups, shrunk towards all prompts. Kept seeds vary
more than fresh ones, and more so the more were previewed. So a group's variance is divided by the gain that its
previews promised: previews must not draw further previews. The shrinkage follows from how much more the groups of an
iteration differ than those of equal prompts would by chance. A prompt whose groups have not varied in `FLAT_GROUPS` or
more visits counts as flat until one does, because its previews have nothing to select.

**Gain**, in closed form: the expected reward variance of kept seeds over that of random ones. Preview and exact reward
are taken as jointly normal with correlation rho. Of N seeds the G with the most extreme previews are kept: their
previews lie beyond the quantiles +-c, and the exact reward takes over rho^2 of that variance.

**Allocation.** The first G previews of a prompt select nothing and every further one adds less than the one before, so
the value of a prompt is zero up to G and concave from there. For a given number m of explored prompts these are the m
with the largest variance, and splitting what remains after m G by marginal gain is optimal; all m are tried. With
little capacity, therefore, few prompts are explored well. Invariants (tests/property/test_planner_property.py): no
other split of the same number of previews is worth more; a reserve never delays what was allocated.

**Knee.** With one-step asynchrony, slots that have finished the planned previews begin the next iteration's rollouts. A
second of previews then costs a second of rollouts, as far as these may be stale. It buys iterations, since groups of
twice the variance are worth about two (measured with NFT: 2.4 times fewer iterations at 2.4 times the variance on
`words-large`, 1.6 at 1.8 on `scenes`, docs/results/explore.json). A stale sample counts as a fresh one. So the seconds
of an iteration per unit of progress are

    (window + rollouts - min(window - x, share * rollouts)) / gain(x)

with x seconds of previews. Up to window - share * rollouts previews are free; beyond that the knee is where a further
second gains less than it costs. Invariants (tests/property/test_knee_property.py): within the window, never less than
what is free, no choice of the grid is better, and all of the window where no sample may be stale.
"""

from collections.abc import Callable, Sequence
from statistics import NormalDist

import msgspec
import numpy as np
from numpy.typing import NDArray

from spotlight.control.advantage import LARGEST_REWARD, Floats
from spotlight.core.types import PromptId

FLAT_GROUPS = 2
MEMORY = 0.7
"""Weight of a visit at the next one: a policy that learned a prompt makes it vary less."""
LEAST_PRIOR, MOST_PRIOR = 0.25, 16.0
"""Weight of the mean over all prompts, in groups: the least where prompts differ greatly, the most where they hardly
do."""


class Seen(msgspec.Struct, frozen=True):
    """Fading sums over the visits of one prompt."""

    weight: float = 0.0
    total: float = 0.0
    flat_visits: int = 0
    """Visits since its rewards last varied."""

    def after(self, variance: float) -> "Seen":
        flat_visits = self.flat_visits + 1 if variance == 0 else 0
        return Seen(MEMORY * self.weight + 1, MEMORY * self.total + variance, flat_visits)


class Variances(msgspec.Struct, frozen=True, kw_only=True):
    """Reward variance per prompt; `updated` returns the estimates after one more iteration."""

    prompts: dict[PromptId, Seen] = {}
    pooled: Seen = Seen()
    chance: Seen = Seen()
    """Squared spread of the variances of equal prompts by chance, over the squared mean."""
    dispersion: Seen = Seen()
    """Squared spread of the observed variances, over the squared mean."""

    def of(self, prompt: PromptId) -> float:
        """Expected variance; 1 for all prompts before the first observation, since only proportions matter."""
        seen = self.prompts.get(prompt, Seen())
        if seen.flat_visits >= FLAT_GROUPS:
            return 0.0
        common = self.pooled.total / self.pooled.weight if self.pooled.total > 0 else 1.0
        return (self.prior_groups * common + seen.total) / (self.prior_groups + seen.weight)

    @property
    def prior_groups(self) -> float:
        """Weight of the mean over all prompts, in groups: chance over the dispersion beyond it."""
        real = self.dispersion.total - self.chance.total
        return min(MOST_PRIOR, max(LEAST_PRIOR, self.chance.total / real)) if real > 0 else MOST_PRIOR

    def updated(
        self, prompts: Sequence[PromptId], rewards: Sequence[Sequence[float]], gains: Sequence[float]
    ) -> "Variances":
        """Add the exact rewards of one iteration's groups; a group with fewer than two usable ones does not count."""
        known, found, chances = dict(self.prompts), [], []
        for prompt, group, gain in zip(prompts, rewards, gains, strict=True):
            usable = np.array([reward for reward in group if abs(reward) <= LARGEST_REWARD])
            if usable.size >= 2:
                variance = float(usable.var()) / gain if usable.min() < usable.max() else 0.0
                known[prompt] = known.get(prompt, Seen()).after(variance)
                found.append(variance)
                # Relative variance of the variance of a normal sample.
                chances.append(2 / (usable.size - 1))
        if not found:
            return self
        mean = float(np.mean(found))
        changed = msgspec.structs.replace(self, prompts=known, pooled=self.pooled.after(mean))
        if len(found) < 2 or mean == 0:
            return changed
        seen: Floats = np.array(found)
        return msgspec.structs.replace(
            changed,
            chance=self.chance.after(float(np.mean(chances))),
            dispersion=self.dispersion.after(float(seen.var(ddof=1)) / mean**2),
        )


_NORMAL = NormalDist()


def excess(seeds: int, group_size: int) -> float:
    """2 c phi(c) / q with q = G / N and c the quantile 1 - q / 2: the gain above 1 of a perfect preview."""
    if seeds <= group_size:
        return 0.0
    share = group_size / seeds
    cut = _NORMAL.inv_cdf(1 - share / 2)
    return 2 * cut * _NORMAL.pdf(cut) / share


def spread_excess(previews: int, prompts: int, group_size: int, most: int) -> float:
    """Mean excess over equally varied prompts, of which all or a few are explored, at most `most` seeds each."""
    explored = [max(1, prompts >> halvings) for halvings in range(prompts.bit_length())]
    return max(count / prompts * excess(min(most, previews // count), group_size) for count in explored)


def gain(seeds: int, group_size: int, rho: float) -> float:
    """Gain over fresh seeds; 1 where nothing can be selected, and a negative correlation counts as 0."""
    return 1 + max(0.0, rho) ** 2 * excess(seeds, group_size)


class Allocation(msgspec.Struct, frozen=True):
    """Previews by prompt, and the weighted mean of `excess` that they buy."""

    seeds: tuple[int, ...]
    excess: float


def allocate(variances: Sequence[float], group_size: int, previews: int, most: int) -> Allocation:
    """Split `previews` over prompts with these reward variances, at most `most` each; leftovers stay unused."""
    weights: Floats = np.asarray(variances, dtype=np.float64)
    unexplored = Allocation((0,) * weights.size, 0.0)
    explored = int((weights > 0).sum())
    room = most - group_size
    if room < 1 or explored == 0 or previews <= group_size:
        return unexplored
    # Sorted by variance, then by place: equal prompts are served in the order given.
    order = np.argsort(-weights, kind="stable")
    ranked = weights[order]
    values = [excess(seeds, group_size) for seeds in range(group_size, most + 1)]
    marginal: Floats = np.diff(np.array(values))
    # Leaving a prompt out costs nothing, so only m with at least one preview beyond G for each are worth trying.
    candidates = range(1, min(explored, previews // (group_size + 1)) + 1)
    worth = [_worth(ranked[:m], marginal, previews - m * group_size) for m in candidates]
    count = 1 + int(np.argmax(worth))
    given = _handed_out(ranked[:count], marginal, previews - count * group_size)
    seeds = np.zeros(weights.size, dtype=np.int64)
    seeds[order[:count]] = np.where(given > 0, group_size + given, 0)
    return Allocation(tuple(int(n) for n in seeds), max(worth) / float(weights.sum()))


def with_reserve(seeds: Sequence[int], variances: Sequence[float]) -> tuple[int, ...]:
    """Give every prompt after the last explored one its number of previews: work for slots that join or prove faster.

    Previews are served group by group, so an earlier reserve would delay what was allocated.
    """
    explored = [number for number, count in enumerate(seeds) if count]
    if not explored:
        return tuple(seeds)
    last = explored[-1]
    return tuple(
        seeds[last] if number > last and variance > 0 else count
        for number, (count, variance) in enumerate(zip(seeds, variances, strict=True))
    )


def _worth(ranked: Floats, marginal: Floats, budget: int) -> float:
    gains = np.outer(ranked, marginal).ravel()
    if budget < gains.size:
        gains = np.partition(gains, gains.size - budget)[gains.size - budget :]
    return float(gains.sum())


def _handed_out(ranked: Floats, marginal: Floats, budget: int) -> NDArray[np.int64]:
    """Previews beyond G by prompt; marginal gains fall within a prompt, so the largest are always its first."""
    gains = np.outer(ranked, marginal)
    taken = np.argsort(-gains.ravel(), kind="stable")[:budget]
    return np.bincount(taken // marginal.size, minlength=ranked.size).astype(np.int64)


PARTS = 16
"""Parts into which `knee` divides the window beyond what is free: the value is flat around the knee."""


def knee(window_s: float, rollout_s: float, share: float, gain: Callable[[float], float]) -> float:
    """Seconds of previews; `gain` maps seconds of previews to the promised gain, 1 for none."""
    free_s = max(0.0, window_s - share * rollout_s)
    choices = [free_s + (window_s - free_s) * part / PARTS for part in range(PARTS + 1)]
    # The longest of equal choices: previews that cost nothing.
    return min(reversed(choices), key=lambda seconds: seconds_per_gain(seconds, window_s, rollout_s, share, gain))


def seconds_per_gain(
    preview_s: float, window_s: float, rollout_s: float, share: float, gain: Callable[[float], float]
) -> float:
    """Seconds per unit of progress of an iteration with `preview_s` of previews."""
    ahead_s = min(window_s - preview_s, share * rollout_s)
    return (window_s + rollout_s - ahead_s) / gain(preview_s)
