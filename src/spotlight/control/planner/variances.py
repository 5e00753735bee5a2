"""How much the rewards of a prompt vary: what its own groups showed, shrunk towards all prompts.

Kept seeds vary more than fresh ones, and more so the more were previewed, so what a group showed is divided by the gain
that its previews promised: previews must not draw further previews. How far a prompt is believed to differ follows from
how much more the groups of an iteration differ among each other than equal prompts' would by chance.

A prompt whose groups have never varied in `FLAT_GROUPS` or more visits counts as flat until one does: previewing it
would find nothing to select.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from spotlight.control.advantage import LARGEST_REWARD, Floats
from spotlight.core.types import PromptId

FLAT_GROUPS = 2
MEMORY = 0.7
"""What a visit is still worth at the next one: a policy that learned a prompt makes it vary less."""
LEAST_PRIOR, MOST_PRIOR = 0.25, 16.0
"""Groups that the mean over all prompts counts for: where prompts differ greatly, and where they hardly do."""


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
    chance: Seen = Seen()
    """How much groups of equal prompts would differ: squared, over the squared mean."""
    dispersion: Seen = Seen()
    """How much they did."""

    def of(self, prompt: PromptId) -> float:
        """Expected variance; 1 for all while nothing has been seen, since only proportions matter."""
        seen = self.prompts.get(prompt, Seen())
        if seen.flat_visits >= FLAT_GROUPS:
            return 0.0
        common = self.pooled.total / self.pooled.weight if self.pooled.total > 0 else 1.0
        return (self.prior_groups * common + seen.total) / (self.prior_groups + seen.weight)

    @property
    def prior_groups(self) -> float:
        """Groups that the mean over all prompts counts for: chance over what differs beyond it."""
        real = self.dispersion.total - self.chance.total
        return min(MOST_PRIOR, max(LEAST_PRIOR, self.chance.total / real)) if real > 0 else MOST_PRIOR

    def updated(
        self, prompts: Sequence[PromptId], rewards: Sequence[Sequence[float]], gains: Sequence[float]
    ) -> "Variances":
        """Take in the exact rewards of one iteration's groups; a group with fewer than two usable ones says nothing."""
        known, found, chances = dict(self.prompts), [], []
        for prompt, group, gain in zip(prompts, rewards, gains, strict=True):
            usable = np.array([reward for reward in group if abs(reward) <= LARGEST_REWARD])
            if usable.size >= 2:
                variance = float(usable.var()) / gain if usable.min() < usable.max() else 0.0
                known[prompt] = known.get(prompt, Seen()).after(variance)
                found.append(variance)
                # Of the variance of a sample from a normal distribution.
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
