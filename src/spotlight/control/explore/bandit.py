"""Which number of steps to preview with: optimism about one smooth curve of how well previews rank.

The bandit learns the correlation rho(S) of previews of S steps with exact rewards, from the audits; what a step count
is worth today follows from the closed form and today's capacity. So what was learned outlives preemptions, and an arm
that does not fit now keeps what is known of it.

Arms are points of one curve, not strangers: an audit of 6 steps tells much about 5 and 8 and something about 3. The
curve is a Gaussian process over log S, and more steps never rank worse. Its prior is a (1 - exp(-1.75 S / S_exact)),
with a such that all steps rank at 0.94, as weights one iteration old alone did; previews of 2 to 8 of 10 steps of the
shipped models lie within 0.1 of it (docs/results/learning_fit.json).
Invariants (tests/property/test_planner_property.py): the curve rises, and an audit never makes any arm more doubtful.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from spotlight.control.advantage import Floats

STALE_RHO = 0.94
PRIOR_RATE = 1.75
PRIOR_SPREAD = 0.2
"""How far rho may lie from the prior curve."""
KINSHIP = 0.8
"""Distance in log S over which arms tell of each other: 4 and 8 steps correlate by exp(-0.38) = 0.69."""
AUDIT_NOISE = 0.12
"""Standard error of rho as one whole observation finds it."""
FULL_AUDIT = 32
"""Audited seeds that make one whole observation; others count in proportion."""
MOST_WEIGHT = 4.0
"""Of one audit in whole observations: prompts differ, however many seeds of them are audited."""

LEAST_WEIGHT = 1e-6
"""Below it an arm has faded: its noise would be beyond what the curve can be solved with."""


class Bandit(msgspec.Struct, frozen=True, kw_only=True):
    """Discounted sums per arm; `learned` returns the bandit that knows one audit more."""

    weights: dict[int, float] = {}
    sums: dict[int, float] = {}

    def learned(self, steps: int, rho: float, audited: float, discount: float) -> "Bandit":
        """Every audit makes all earlier ones fade, those of other arms too: the policy moved for all of them."""
        weight = min(MOST_WEIGHT, audited / FULL_AUDIT)
        weights = {arm: discount * value for arm, value in self.weights.items()}
        sums = {arm: discount * value for arm, value in self.sums.items()}
        weights[steps] = weights.get(steps, 0.0) + weight
        sums[steps] = sums.get(steps, 0.0) + weight * rho
        return Bandit(weights=weights, sums=sums)

    def curve(self, arms: Sequence[int], full_steps: int, alpha: float = 0.0) -> dict[int, float]:
        """Correlation by steps: expected, or with `alpha` that many standard deviations above, as far as 1."""
        steps = sorted(arms)
        prior: Floats = np.array([prior_rho(arm, full_steps) for arm in steps])
        shift, doubt = self._known(steps, full_steps)
        rising: Floats = np.maximum.accumulate(np.clip(prior + shift + alpha * doubt, 0.0, 1.0))
        return {arm: float(rho) for arm, rho in zip(steps, rising, strict=True)}

    def doubt(self, arms: Sequence[int], full_steps: int) -> dict[int, float]:
        """Standard deviation of what is believed of each arm."""
        steps = sorted(arms)
        return {arm: float(value) for arm, value in zip(steps, self._known(steps, full_steps)[1], strict=True)}

    def _known(self, steps: Sequence[int], full_steps: int) -> tuple[Floats, Floats]:
        """How far the curve lies above the prior at each of these step counts, and how sure that is not."""
        seen = sorted(arm for arm, weight in self.weights.items() if weight > LEAST_WEIGHT)
        own: Floats = np.full(len(steps), PRIOR_SPREAD)
        if not seen:
            return np.zeros(len(steps)), own
        found = np.array([self.sums[arm] / self.weights[arm] - prior_rho(arm, full_steps) for arm in seen])
        noise = np.diag([AUDIT_NOISE**2 / self.weights[arm] for arm in seen])
        across = _kinship(steps, seen)
        pull = np.linalg.solve(_kinship(seen, seen) + noise, across.T).T
        variance = np.maximum(PRIOR_SPREAD**2 - (pull * across).sum(axis=1), 0.0)
        return pull @ found, np.sqrt(variance)


def prior_rho(steps: int, full_steps: int) -> float:
    return STALE_RHO * math.expm1(-PRIOR_RATE * steps / full_steps) / math.expm1(-PRIOR_RATE)


def best_arm(values: Mapping[int, float], arms: Sequence[int]) -> int:
    """The arm of the largest value; of equal ones that with the fewest steps."""
    return max(sorted(arms), key=lambda steps: values[steps])


def _kinship(some: Sequence[int], others: Sequence[int]) -> Floats:
    """Covariance of the curve at two lists of step counts."""
    distance = (np.log(some)[:, None] - np.log(others)[None, :]) / KINSHIP
    covariance: Floats = PRIOR_SPREAD**2 * np.exp(-0.5 * distance**2)
    return covariance
