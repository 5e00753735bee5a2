"""A learner that draws whole trajectories, more than it trains on, and keeps the most contrasting finished ones."""

from dataclasses import replace

import numpy as np
import torch

from benchmarks.explore.figures import ExploreSettings
from benchmarks.learn.run import Group, Learner
from spotlight.compute.rewards.protocol import Scorer
from spotlight.compute.rollout.denoise import Rollout
from spotlight.compute.train.experience import Experience
from spotlight.config import RunConfig
from spotlight.control.advantage import GroupOutcome
from spotlight.control.explore.config import Baseline
from spotlight.control.explore.seeds import Preview, choose


def widened(config: RunConfig, drawn: int) -> RunConfig:
    """The same settings with groups of `drawn` samples."""
    settings = config.model_dump()
    settings["rollout"]["group_size"] = drawn
    return RunConfig.model_validate(settings)


class Oversampler(Learner):
    """Draws groups of `settings.previews` samples and trains on `rollout.group_size` of each."""

    def __init__(self, config: RunConfig, pool: Scorer, settings: ExploreSettings) -> None:
        super().__init__(config, pool)
        self.settings = settings
        self.wide = widened(config, settings.previews)
        self._means: list[float | None] = []
        """Means of all finished samples of each prompt."""

    def issue(self, iteration: int) -> list[Group]:
        own, self.config = self.config, self.wide
        try:
            return super().issue(iteration)
        finally:
            self.config = own

    def compare(
        self, iteration: int, groups: list[Group], rollout: Rollout, rewards_by_group: list[np.ndarray]
    ) -> tuple[Experience, list[GroupOutcome]]:
        """Keep the finished samples whose rewards differ most; the others are never trained on."""
        kept = [contrasting(rewards, self.config.rollout.group_size) for rewards in rewards_by_group]
        finite = [rewards[np.isfinite(rewards)] for rewards in rewards_by_group]
        self._means = [float(np.mean(rewards)) if rewards.size else None for rewards in finite]
        drawn = self.settings.previews
        rows = torch.tensor([number * drawn + place for number, places in enumerate(kept) for place in places])
        self.cond = self.cond.rows(rows.to(self.cond.embeds.device))
        self.uncond = None if self.uncond is None else self.uncond.rows(rows.to(self.uncond.embeds.device))
        chosen = [
            replace(group, samples=tuple(group.samples[place] for place in places))
            for group, places in zip(groups, kept, strict=True)
        ]
        rewards = [rewards[list(places)] for rewards, places in zip(rewards_by_group, kept, strict=True)]
        return super().compare(iteration, chosen, taken(rollout, rows), rewards)

    def baselines(
        self, iteration: int, groups: list[Group], rewards_by_group: list[np.ndarray]
    ) -> list[float | None] | None:
        """With an audited baseline, the mean over all finished samples, which is known here."""
        return None if self.settings.baseline is Baseline.KEPT else self._means


def contrasting(rewards: np.ndarray, size: int) -> list[int]:
    """Places of the `size` rewards that vary most, ascending; of equal rewards the first ones."""
    finished = [Preview(place, float(reward)) for place, reward in enumerate(rewards)]
    return sorted(choose(finished, size, range(len(finished))).seeds)


def taken(rollout: Rollout, rows: torch.Tensor) -> Rollout:
    """Some rows of a rollout, in this order."""
    index = rows.to(rollout.x0_BSC.device)
    return Rollout(
        samples=tuple(rollout.samples[row] for row in rows.tolist()),
        x0_BSC=rollout.x0_BSC[index],
        path_BKSC=rollout.path_BKSC[index],
        log_prob_BK=rollout.log_prob_BK[index],
        mean_BKSC=rollout.mean_BKSC[index],
    )
