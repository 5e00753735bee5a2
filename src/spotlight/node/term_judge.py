"""Scores finished pictures with one reward: one queue, several reward processes, one batch at a time in each.

    batch --scores--> a verdict for each picture
      |--the reward is unavailable--> each picture waits, then is tried again alone
      `--the reward raised, or its process died or hung--> each picture of the batch alone
    picture alone --score--> its verdict
      |--the reward is unavailable--> it waits twice as long as before, at most LONGEST_WAIT_S, then again
      |--its process died--> again, in a new process, up to DEATHS_ALLOWED times
      `--the reward raised, its process hung, or died too often--> unscored, with the reason

New pictures are served before those that are tried again, so that an outage does not hold up pictures that can be
scored. Invariants (tests/unit/test_judge.py, tests/unit/test_unavailable_rewards.py, tests/storm): a picture gets a
verdict in bounded time unless the reward is unavailable, and then once it is available; the death of a reward process,
idle or busy, leaves no picture unscored.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from spotlight.compute.rewards.combination import Verdict, score_of
from spotlight.compute.rewards.protocol import JUDGE, Scores
from spotlight.compute.rewards.reward_pool import RewardHung, RewardProcessDied
from spotlight.core.errors import RewardUnavailable
from spotlight.core.messages import Score

GATHER_S = 0.004
"""Wait of a picture for others to share its batch: short against the 25 ms for reading one word."""
DEATHS_ALLOWED = 4
"""Processes in a row that may die over one picture alone before it stays unscored."""
HUNG_ALLOWED = 2
"""Hangs per batch, over pictures alone, before the rest of the batch stays unscored."""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""Wait of a picture after the first failure of an unavailable reward, and the bound of its doubling."""

Item = TypeVar("Item")
Taken = TypeVar("Taken", contravariant=True)


def longest_verdict_s(timeout_s: float) -> float:
    """Seconds until the first verdict on a batch that the reward hangs at: the batch, then pictures alone."""
    return (1 + HUNG_ALLOWED) * timeout_s


@dataclass(frozen=True)
class Scored:
    """Scores of a batch, and the name and version of the reward that gave them."""

    scores: Scores
    scorer: str
    judged: dict[int, float] = field(default_factory=dict)
    """The second judge's scores, by the index of the picture."""


class ScoringProcess(Protocol[Taken]):
    """One reward process; it takes one batch at a time."""

    async def score(self, items: Sequence[Taken]) -> Scored:
        """Score a batch; after RewardProcessDied or RewardHung the next call uses a new process."""

    async def close(self) -> None: ...


@dataclass(order=True)
class _Case(Generic[Item]):
    """One picture; ordered by the number of failed tries, then by arrival."""

    tries: int
    number: int
    item: Item = field(compare=False)
    verdict: asyncio.Future[Verdict] = field(compare=False)


class TermJudge(Generic[Item]):
    """One task per reward process takes batches from the queue; `judge` waits for the verdict on one picture."""

    def __init__(
        self,
        processes: Sequence[ScoringProcess[Item]],
        batch: int,
        report: Callable[[Exception], str],
        waits: Callable[[int, str], None],
    ) -> None:
        """`report` logs an error's traceback and returns the reason recorded with an unscored picture. `waits` is
        called with the number of pictures that wait for an unavailable reward, whenever it changes, and the reason."""
        self._processes = processes
        self._batch = batch
        self._report = report
        self._waits = waits
        self._queue: asyncio.PriorityQueue[_Case[Item]] = asyncio.PriorityQueue()
        self._arrived = 0
        self._waiting = 0
        self._tasks = [asyncio.create_task(self._serve(process)) for process in processes]

    async def judge(self, item: Item) -> Verdict:
        self._arrived += 1
        case = _Case(0, self._arrived, item, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(case)
        return await case.verdict

    def cancel(self) -> None:
        """Stop all tasks; no verdict follows."""
        for task in self._tasks:
            task.cancel()
        # Its owner holds the judge and is held by the callback; a long simulation collects no cycles.
        self._waits = _unheard

    async def close(self) -> None:
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(process.close() for process in self._processes))

    async def _serve(self, process: ScoringProcess[Item]) -> None:
        """Take batches of pictures from the queue until `close`."""
        while True:
            batch = await self._next_batch()
            verdicts = await self._verdicts(process, [case.item for case in batch])
            for case, verdict in zip(batch, verdicts, strict=True):
                if isinstance(verdict, RewardUnavailable):
                    self._postpone(case, verdict)
                    continue
                if case.tries:
                    self._count(-1, "")
                if not case.verdict.done():
                    case.verdict.set_result(verdict)

    async def _next_batch(self) -> list[_Case[Item]]:
        """New pictures together, or one alone that is tried again."""
        batch = [await self._queue.get()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                while len(batch) < self._batch and not batch[0].tries:
                    case = await self._queue.get()
                    if case.tries:
                        self._queue.put_nowait(case)
                        break
                    batch.append(case)
        return batch

    def _postpone(self, case: _Case[Item], error: RewardUnavailable) -> None:
        """Queue the picture again after its wait."""
        if not case.tries:
            self._count(1, str(error) or type(error).__name__)
        wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(case.tries, 30))
        again = _Case(case.tries + 1, case.number, case.item, case.verdict)
        asyncio.get_running_loop().call_later(wait_s, self._queue.put_nowait, again)

    def _count(self, change: int, why: str) -> None:
        self._waiting += change
        self._waits(self._waiting, why)

    async def _verdicts(
        self, process: ScoringProcess[Item], items: Sequence[Item]
    ) -> Sequence[Verdict | RewardUnavailable]:
        try:
            return await _scored(process, items)
        except RewardUnavailable as error:
            # Not reported: the tracebacks of an outage would use up the log's limit.
            return [error] * len(items)
        except Exception as error:  # if this task ended, every later sample would stay unscored
            self._report(error)
        verdicts: list[Verdict | RewardUnavailable] = []
        hung = 0
        for item in items:
            try:
                verdicts.append(await self._alone(process, item))
            except RewardUnavailable as error:
                verdicts.append(error)
            except Exception as error:
                verdicts.append(unscored(self._report(error)))
                hung += isinstance(error, RewardHung)
            if hung >= HUNG_ALLOWED:
                # Waiting for each of the remaining pictures could take hours.
                break
        return verdicts + [verdicts[-1]] * (len(items) - len(verdicts))

    async def _alone(self, process: ScoringProcess[Item], item: Item) -> Verdict:
        """Score one picture, again in a new process if one dies: only repeated deaths are due to the picture."""
        for remaining in reversed(range(DEATHS_ALLOWED)):
            try:
                (verdict,) = await _scored(process, [item])
            except RewardProcessDied as error:
                if not remaining:
                    raise
                self._report(error)
            else:
                return verdict
        raise AssertionError("the last death is raised")


async def _scored(process: ScoringProcess[Item], items: Sequence[Item]) -> list[Verdict]:
    found = await process.score(items)
    scores = [score_of(found.scores, index, found.scorer) for index in range(len(items))]
    for index, judged in found.judged.items():
        scores[index].components[JUDGE] = judged
    return [Verdict(score) for score in scores]


def unscored(problem: str) -> Verdict:
    """Verdict of a sample that is kept without a score."""
    return Verdict(Score(reward=math.nan), problem)


def _unheard(pictures: int, why: str) -> None:
    """Drop the report: the judge has ended."""
