"""One process of one reward on a node: a RewardPool of one process, replaced when it dies or hangs.

A thread waits for the process's scores, so the agent's event loop is not blocked.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from spotlight.compute.rewards.config import Term
from spotlight.compute.rewards.reward_pool import RewardHung, RewardPool, RewardProcessDied
from spotlight.node.judge import Picture
from spotlight.node.term_judge import Scored

TRACEBACKS_LOGGED = 20
"""Limit per node: a broken reward raises at every picture."""

log = logging.getLogger("spotlight.judge")


class RewardLog:
    """Logs the tracebacks of a reward's errors; called with each error, it returns the reason to record."""

    def __init__(self, name: str) -> None:
        """`name` is the file that this process logs to."""
        self._name = name
        self._tracebacks = 0

    def __call__(self, error: Exception) -> str:
        if self._tracebacks < TRACEBACKS_LOGGED:
            self._tracebacks += 1
            log.warning("a reward failed: %s", error, exc_info=error)
        return f"{str(error) or type(error).__name__} (its traceback is in {self._name})"


class RewardProcess:
    """Implements `term_judge.ScoringProcess`; the constructor starts the process, which loads the reward at once.

    A second judge scores in the same process, after the reward. Invariant (tests/unit/test_judge.py): no failure of the
    second judge changes the reward's scores. A judge that kills its process or hangs is not called again.
    """

    def __init__(self, reward: Term, judge: str | None = None, report: Callable[[str], None] = log.warning) -> None:
        """`report` is called, in the scoring thread, with the reason why the judge did not score."""
        self._reward = reward
        self._judge = judge
        self._report = report
        self._pool = RewardPool(1, reward.timeout_s)
        self._version = ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="judge")
        # Loading a reward takes seconds; meanwhile the workers load their model.
        self._thread.submit(self._warm_up)

    async def score(self, items: Sequence[Picture]) -> Scored:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._score, items)

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.close)
        self._thread.shutdown()

    def _warm_up(self) -> None:
        with contextlib.suppress(Exception):  # the first batch fails in the same way
            self._version = self._pool.version(self._reward)

    def _score(self, items: Sequence[Picture]) -> Scored:
        try:
            self._version = self._version or self._pool.version(self._reward)
            scores = self._pool.score(self._reward, [item.image for item in items], [item.prompt for item in items])
        except (RewardHung, RewardProcessDied):
            self._replace_pool()
            raise
        return Scored(scores, self._reward.recorded(self._version), self._judged(items))

    def _judged(self, items: Sequence[Picture]) -> dict[int, float]:
        """The second judge's scores of the pictures marked for it, by index; empty if it fails."""
        indices = [index for index, item in enumerate(items) if item.is_judged]
        if self._judge is None or not indices:
            return {}
        judge, chosen = self._judge, [items[index] for index in indices]
        try:
            scores = self._pool.score(judge, [item.image for item in chosen], [item.prompt for item in chosen])
        except Exception as error:
            log.warning("the judge '%s' failed", judge, exc_info=error)
            if isinstance(error, RewardHung | RewardProcessDied):
                self._replace_pool()
                self._judge = None
            self._report(f"the second judge '{judge}' gave no score for {len(chosen)} held-out pictures: {error}")
            return {}
        return dict(zip(indices, map(float, scores.total), strict=True))

    def _replace_pool(self) -> None:
        pool, self._pool = self._pool, RewardPool(1, self._reward.timeout_s)
        pool.close()
