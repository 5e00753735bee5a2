"""Rewards of training samples by iteration: the mean of each component, the spread inside groups, the extremes.

An iteration is folded when its groups are compared; a sample that was made again counts once, with its last reward.
Invariant: the means are over the rollouts of the comparison that have a score (tests/unit/test_reward_rows.py).
"""

import math
from statistics import fmean, pstdev

import msgspec

from spotlight.core.events import Accepted, AnyEvent, Compared, Dropped, Issued
from spotlight.core.types import PromptId
from spotlight.core.work import RequestId, Work, place_of
from spotlight.surface.sample_counts import work_of

TOTAL = "reward"
EXTREMES_KEPT = 6
"""Groups of the newest iteration whose best and worst samples are kept, by contrast."""


class ScoredSample(msgspec.Struct, frozen=True):
    """Rewards of one rollout by component; `reward` is the one that is trained on."""

    seed: int
    rewards: dict[str, float]


class RewardRow(msgspec.Struct, frozen=True, kw_only=True):
    """Rewards of one iteration."""

    iteration: int
    means: dict[str, float]
    spread: float | None
    """Mean over groups of the standard deviation inside them; None without a group of two scored samples."""
    groups: int
    flat: int
    """Groups whose samples all have one reward: nothing is learned from them."""


class GroupExtremes(msgspec.Struct, frozen=True, kw_only=True):
    """The worst and the best sample of one group."""

    prompt: PromptId
    low: float
    low_seed: int
    high: float
    high_seed: int


class RewardView(msgspec.Struct, kw_only=True):
    """Rewards by iteration, folded from the journal."""

    rows: dict[int, RewardRow] = {}
    extremes: list[GroupExtremes] = []
    """Groups of the newest compared iteration, the largest contrast first."""
    scored: dict[RequestId, ScoredSample] = {}
    """Accepted rollouts that are not compared yet."""
    prompts: dict[int, dict[int, PromptId]] = {}
    """Prompts of issued rollouts that are not compared yet, by iteration and group."""

    def apply(self, event: AnyEvent) -> None:
        match event:
            case Issued(requests=requests):
                for request in requests:
                    if request.work is Work.ROLLOUT:
                        self.prompts.setdefault(request.iteration, {})[request.group] = request.sample.prompt
            case Accepted(request=request) if work_of(request) is Work.ROLLOUT:
                if math.isfinite(event.reward):
                    rewards = {TOTAL: event.reward, **event.components}
                    self.scored[request] = ScoredSample(place_of(request)[3], rewards)
                else:
                    self.scored.pop(request, None)
            case Dropped(request=request):
                self.scored.pop(request, None)
            case Compared(iteration=iteration):
                self._compare(iteration)
            case _:
                pass

    def _compare(self, iteration: int) -> None:
        groups: dict[int, list[ScoredSample]] = {}
        for request in [each for each in self.scored if place_of(each)[1] <= iteration]:
            sample = self.scored.pop(request)
            _, of, group, _ = place_of(request)
            if of == iteration:
                groups.setdefault(group, []).append(sample)
        prompts = self.prompts.pop(iteration, {})
        if not groups:
            return
        samples = [sample for members in groups.values() for sample in members]
        names = [name for name in samples[0].rewards if all(name in sample.rewards for sample in samples)]
        spreads = [pstdev(sample.rewards[TOTAL] for sample in members) for members in groups.values() if members[1:]]
        self.rows[iteration] = RewardRow(
            iteration=iteration,
            means={name: fmean(sample.rewards[name] for sample in samples) for name in names},
            spread=fmean(spreads) if spreads else None,
            groups=len(groups),
            flat=sum(spread == 0.0 for spread in spreads),
        )
        found = [_extremes(prompts.get(group, PromptId("")), members) for group, members in sorted(groups.items())]
        self.extremes = sorted(found, key=lambda one: one.low - one.high)[:EXTREMES_KEPT]


def _extremes(prompt: PromptId, members: list[ScoredSample]) -> GroupExtremes:
    low, high = (choose(members, key=lambda sample: sample.rewards[TOTAL]) for choose in (min, max))
    return GroupExtremes(
        prompt=prompt, low=low.rewards[TOTAL], low_seed=low.seed, high=high.rewards[TOTAL], high_seed=high.seed
    )
