"""The bandit over preview step counts: optimism about one smooth curve of how well previews rank.

The bandit learns from the audits the correlation rho(S) of previews of S steps with exact rewards. The value of a step
count then follows from the closed form and today's capacity. So what was learned outlives preemptions, and an arm that
does not fit now keeps its estimate.

Arms are points of one curve: an audit of 6 steps informs much about 5 and 8 and a little about 3. The curve is a
Gaussian process over log S, and more steps never rank worse. Its prior is a (1 - exp(-1.75 S / S_exact)), with a such
that all steps rank at 0.94, the measured effect of weights one iteration old; previews of 2 to 8 of 10 steps of the
shipped models lie within 0.1 of it (docs/results/learning_fit.json).
Invariants (tests/property/test_planner_property.py): the curve rises, and an audit never increases an arm's doubt.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from spotlight.control.advantage import Floats

STALE_RHO = 0.94
PRIOR_RATE = 1.75
PRIOR_SPREAD = 0.2
"""Standard deviation of rho around the prior curve."""
LENGTH_SCALE = 0.8
"""Distance in log S over which arms correlate: 4 and 8 steps by exp(-0.38) = 0.69."""
AUDIT_NOISE = 0.12
"""Standard error of rho in one whole observation."""
FULL_AUDIT = 32
"""Audited seeds per whole observation; other numbers count in proportion."""
MOST_WEIGHT = 4.0
"""Largest weight of one audit, in whole observations: prompts differ, however many seeds of them are audited."""

LEAST_WEIGHT = 1e-6
"""Weight below which an arm is dropped: its noise would make the curve unsolvable."""


class Bandit(msgspec.Struct, frozen=True, kw_only=True):
    """Discounted sums per arm; `learned` returns a bandit with one more audit."""

    weights: dict[int, float] = {}
    sums: dict[int, float] = {}

    def learned(self, steps: int, rho: float, audited: float, discount: float) -> "Bandit":
        """Add an audit; all earlier ones fade, those of other arms too, because the policy moved for all of them."""
        weight = min(MOST_WEIGHT, audited / FULL_AUDIT)
        weights = {arm: discount * value for arm, value in self.weights.items()}
        sums = {arm: discount * value for arm, value in self.sums.items()}
        weights[steps] = weights.get(steps, 0.0) + weight
        sums[steps] = sums.get(steps, 0.0) + weight * rho
        return Bandit(weights=weights, sums=sums)

    def curve(self, arms: Sequence[int], full_steps: int, alpha: float = 0.0) -> dict[int, float]:
        """Correlation by steps: expected, or `alpha` standard deviations above, at most 1."""
        steps = sorted(arms)
        prior: Floats = np.array([prior_rho(arm, full_steps) for arm in steps])
        shift, doubt = self._known(steps, full_steps)
        rising: Floats = np.maximum.accumulate(np.clip(prior + shift + alpha * doubt, 0.0, 1.0))
        return {arm: float(rho) for arm, rho in zip(steps, rising, strict=True)}

    def doubt(self, arms: Sequence[int], full_steps: int) -> dict[int, float]:
        """Standard deviation of each arm's estimate."""
        steps = sorted(arms)
        return {arm: float(value) for arm, value in zip(steps, self._known(steps, full_steps)[1], strict=True)}

    def _known(self, steps: Sequence[int], full_steps: int) -> tuple[Floats, Floats]:
        """Distance of the curve above the prior at each of these step counts, and its standard deviation."""
        seen = sorted(arm for arm, weight in self.weights.items() if weight > LEAST_WEIGHT)
        own: Floats = np.full(len(steps), PRIOR_SPREAD)
        if not seen:
            return np.zeros(len(steps)), own
        found = np.array([self.sums[arm] / self.weights[arm] - prior_rho(arm, full_steps) for arm in seen])
        noise = np.diag([AUDIT_NOISE**2 / self.weights[arm] for arm in seen])
        across = _covariance(steps, seen)
        gain = np.linalg.solve(_covariance(seen, seen) + noise, across.T).T
        variance = np.maximum(PRIOR_SPREAD**2 - (gain * across).sum(axis=1), 0.0)
        return gain @ found, np.sqrt(variance)


def prior_rho(steps: int, full_steps: int) -> float:
    return STALE_RHO * math.expm1(-PRIOR_RATE * steps / full_steps) / math.expm1(-PRIOR_RATE)


def best_arm(values: Mapping[int, float], arms: Sequence[int]) -> int:
    """The arm of the largest value; of equal arms the one with the fewest steps."""
    return max(sorted(arms), key=lambda steps: values[steps])


def _covariance(some: Sequence[int], others: Sequence[int]) -> Floats:
    """Covariance of the curve at two lists of step counts."""
    distance = (np.log(some)[:, None] - np.log(others)[None, :]) / LENGTH_SCALE
    covariance: Floats = PRIOR_SPREAD**2 * np.exp(-0.5 * distance**2)
    return covariance
