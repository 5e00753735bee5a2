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

TOTAL = "reward"
ROLLOUT = f"{Work.ROLLOUT.value}/"
"""Start of the ids of rollouts."""
EXTREMES_KEPT = 6
"""Groups of the newest iteration whose best and worst samples are kept, by contrast."""


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
    scored: dict[RequestId, dict[str, float]] = {}
    """Rewards by component of accepted rollouts that are not compared yet; `reward` is the one that is trained on."""
    prompts: dict[int, dict[int, PromptId]] = {}
    """Prompts of issued rollouts that are not compared yet, by iteration and group."""

    def apply(self, event: AnyEvent) -> None:
        if isinstance(event, Accepted):
            if event.request.startswith(ROLLOUT):
                self._accept(event)
            return
        match event:
            case Issued(requests=requests):
                for request in requests:
                    if request.work is Work.ROLLOUT:
                        self.prompts.setdefault(request.iteration, {})[request.group] = request.sample.prompt
            case Dropped(request=dropped):
                self.scored.pop(dropped, None)
            case Compared(iteration=iteration):
                self._compare(iteration)
            case _:
                pass

    def _accept(self, accepted: Accepted) -> None:
        if math.isfinite(accepted.reward):
            self.scored[accepted.request] = {TOTAL: accepted.reward, **accepted.components}
        else:
            self.scored.pop(accepted.request, None)

    def _compare(self, iteration: int) -> None:
        groups: dict[int, dict[int, dict[str, float]]] = {}
        """Rewards by group and seed."""
        for request in list(self.scored):
            _, of, group, seed = place_of(request)
            if of <= iteration:
                rewards = self.scored.pop(request)
                if of == iteration:
                    groups.setdefault(group, {})[seed] = rewards
        prompts = self.prompts.pop(iteration, {})
        if not groups:
            return
        samples = [rewards for members in groups.values() for rewards in members.values()]
        names = [name for name in samples[0] if all(name in rewards for rewards in samples)]
        spreads = [
            pstdev(rewards[TOTAL] for rewards in members.values()) for members in groups.values() if len(members) > 1
        ]
        self.rows[iteration] = RewardRow(
            iteration=iteration,
            means={name: fmean(rewards[name] for rewards in samples) for name in names},
            spread=fmean(spreads) if spreads else None,
            groups=len(groups),
            flat=sum(spread == 0.0 for spread in spreads),
        )
        found = [_extremes(prompts.get(group, PromptId("")), members) for group, members in sorted(groups.items())]
        self.extremes = sorted(found, key=lambda one: one.low - one.high)[:EXTREMES_KEPT]


def _extremes(prompt: PromptId, members: dict[int, dict[str, float]]) -> GroupExtremes:
    low, high = (choose(members, key=lambda seed: members[seed][TOTAL]) for choose in (min, max))
    return GroupExtremes(
        prompt=prompt, low=members[low][TOTAL], low_seed=low, high=members[high][TOTAL], high_seed=high
    )
