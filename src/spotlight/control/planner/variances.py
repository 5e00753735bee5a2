"""How much the rewards of a prompt vary: what its own groups showed, shrunk towards all prompts.

A prompt whose groups have never varied in `FLAT_GROUPS` or more visits counts as flat until one does: previewing it
would find nothing to select.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from spotlight.control.advantage import LARGEST_REWARD
from spotlight.core.types import PromptId

PRIOR_GROUPS = 1.0
"""Groups that the mean over all prompts counts for."""
FLAT_GROUPS = 2
MEMORY = 0.7
"""What a visit is still worth at the next one: a policy that learned a prompt makes it vary less."""


class Seen(msgspec.Struct, frozen=True):
    """Fading sums over the visits of one prompt."""

    weight: float = 0.0
    total: float = 0.0
    flat_visits: int = 0
    """Since it last varied."""

    def after(self, variance: float) -> "Seen":
        flat_visits = self.flat_visits + 1 if variance == 0 else 0
        return Seen(MEMORY * self.weight + 1, MEMORY * self.total + variance, flat_visits)


class Variances(msgspec.Struct, frozen=True, kw_only=True):
    """What every prompt showed; `updated` returns what is known after one more iteration."""

    prompts: dict[PromptId, Seen] = {}
    pooled: Seen = Seen()

    def of(self, prompt: PromptId) -> float:
        """Expected variance; 1 for all while nothing has been seen, since only proportions matter."""
        seen = self.prompts.get(prompt, Seen())
        if seen.flat_visits >= FLAT_GROUPS:
            return 0.0
        common = self.pooled.total / self.pooled.weight if self.pooled.total > 0 else 1.0
        return (PRIOR_GROUPS * common + seen.total) / (PRIOR_GROUPS + seen.weight)

    def updated(self, prompts: Sequence[PromptId], rewards: Sequence[Sequence[float]]) -> "Variances":
        """Take in the exact rewards of one iteration's groups; a group with fewer than two usable ones says nothing."""
        known, found = dict(self.prompts), []
        for prompt, group in zip(prompts, rewards, strict=True):
            usable = np.array([reward for reward in group if abs(reward) <= LARGEST_REWARD])
            if usable.size >= 2:
                variance = float(usable.var()) if usable.min() < usable.max() else 0.0
                known[prompt] = known.get(prompt, Seen()).after(variance)
                found.append(variance)
        pooled = self.pooled.after(float(np.mean(found))) if found else self.pooled
        return Variances(prompts=known, pooled=pooled)
