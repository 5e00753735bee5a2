"""A simulated reward process: takes time, may be killed at any time, restarts; may be unavailable for a while."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from spotlight.compute.rewards.config import Term
from spotlight.compute.rewards.protocol import Scores
from spotlight.compute.rewards.reward_pool import RewardProcessDied
from spotlight.core.errors import RewardError, RewardUnavailable
from spotlight.core.messages import Score
from spotlight.core.work import Request
from spotlight.node.term_judge import Scored


@dataclass(frozen=True)
class SimPicture:
    """A finished sample in the judge's queue."""

    request: Request
    score: Score | None
    """None: the reward always raises for this picture."""
    seconds: float


class SimRewardProcess:
    """Implements `term_judge.ScoringProcess` in virtual time."""

    def __init__(self, start_s: float, key: str, is_down: Callable[[str], bool]) -> None:
        """`key` names the component that it scores, empty for the reward itself; `is_down`: it cannot score now."""
        self._key = key
        self._is_down = is_down
        self._start_s = start_s
        self._is_dead = False
        self._is_started = True
        self._busy: asyncio.Future[None] | None = None

    def kill(self) -> None:
        """An idle process fails at the next batch, a busy one fails its batch."""
        self._is_dead = True
        if self._busy is not None and not self._busy.done():
            self._busy.set_result(None)

    async def score(self, items: Sequence[SimPicture]) -> Scored:
        if self._is_dead:
            self._restart()
            raise RewardProcessDied("the reward process was killed while it was idle.")
        await self._work(max(item.seconds for item in items) + (0.0 if self._is_started else self._start_s))
        self._is_started = True
        if self._is_down(self._key):
            raise RewardUnavailable("the simulated endpoint is down.")
        return Scored(_joined(items, self._key), items[0].score.scorer if items[0].score is not None else "")

    async def close(self) -> None:
        pass

    async def _work(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        busy = self._busy = loop.create_future()
        timer = loop.call_later(seconds, _settle, busy)
        try:
            await busy
        finally:
            timer.cancel()
            self._busy = None
        if self._is_dead:
            self._restart()
            raise RewardProcessDied("the reward process was killed while it was scoring.")

    def _restart(self) -> None:
        self._is_dead = self._is_started = False


def reward_processes(
    terms: Sequence[Term], count: int, start_s: float, is_down: Callable[[str], bool]
) -> list[tuple[Term, list[SimRewardProcess]]]:
    """`count` processes of each reward."""
    return [(term, [SimRewardProcess(start_s, term.key, is_down) for _ in range(count)]) for term in terms]


def _joined(items: Sequence[SimPicture], key: str) -> Scores:
    scores = [item.score for item in items if item.score is not None]
    if len(scores) < len(items):
        raise RewardError("the reward raised at a picture.")
    if key:
        return Scores(total=np.array([score.components[key] for score in scores]))
    names = scores[0].components.keys()
    return Scores(
        total=np.array([score.reward for score in scores]),
        components={name: np.array([score.components[name] for score in scores]) for name in names},
    )


def _settle(busy: "asyncio.Future[None]") -> None:
    if not busy.done():
        busy.set_result(None)
