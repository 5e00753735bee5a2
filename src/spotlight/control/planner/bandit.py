"""Which number of steps to preview with: discounted optimism about how well each ranks.

The bandit learns one number per arm, the correlation rho(S) of previews of S steps with exact rewards, from the audits;
what an arm is worth today follows from the closed form and today's capacity. So what was learned outlives preemptions,
and an arm that does not fit now keeps what is known of it.

Before any audit rho(S) = 0.94 (1 - exp(-3.2 S / S_exact)): one-iteration-old weights alone ranked at 0.94, previews of
6 of 10 steps at 0.75 to 0.88. The prior counts as one observation; its spread scales the optimism.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

STALE_RHO = 0.94
PRIOR_RATE = 3.2
PRIOR_WEIGHT = 1.0
PRIOR_SPREAD = 0.2
"""How far an arm's rho may lie from the prior curve."""
FULL_AUDIT = 32
"""Audited seeds that make one whole observation; fewer count in proportion."""


class Bandit(msgspec.Struct, frozen=True, kw_only=True):
    """Discounted sums per arm; `learned` returns the bandit that knows one audit more."""

    weights: dict[int, float] = {}
    sums: dict[int, float] = {}

    def learned(self, steps: int, rho: float, audited: float, discount: float) -> "Bandit":
        """Every audit makes all earlier ones fade, those of other arms too: the policy moved for all of them."""
        weight = min(1.0, audited / FULL_AUDIT)
        weights = {arm: discount * value for arm, value in self.weights.items()}
        sums = {arm: discount * value for arm, value in self.sums.items()}
        weights[steps] = weights.get(steps, 0.0) + weight
        sums[steps] = sums.get(steps, 0.0) + weight * rho
        return Bandit(weights=weights, sums=sums)

    def rho(self, steps: int, full_steps: int) -> float:
        """Expected correlation."""
        seen = self.weights.get(steps, 0.0)
        known = PRIOR_WEIGHT * prior_rho(steps, full_steps) + self.sums.get(steps, 0.0)
        return known / (PRIOR_WEIGHT + seen)

    def optimistic_rho(self, steps: int, full_steps: int, alpha: float) -> float:
        """The upper end of what is plausible; arms seldom tried lately get more of the doubt."""
        total = math.fsum(self.weights[arm] for arm in sorted(self.weights))
        doubt = math.sqrt(math.log1p(total) / (PRIOR_WEIGHT + self.weights.get(steps, 0.0)))
        return min(1.0, self.rho(steps, full_steps) + alpha * PRIOR_SPREAD * doubt)


def prior_rho(steps: int, full_steps: int) -> float:
    return STALE_RHO * (1 - math.exp(-PRIOR_RATE * steps / full_steps))


def best_arm(values: Mapping[int, float], arms: Sequence[int]) -> int:
    """The arm of the largest value; of equal ones that with the fewest steps."""
    return max(sorted(arms), key=lambda steps: values[steps])
