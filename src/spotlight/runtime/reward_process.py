"""One reward process of a node's judge: a pool of one, replaced whenever it dies or hangs.

Scoring waits in a thread, because the answer of another process is waited for there; the agent's event loop goes on.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from spotlight.compute.rewards.pool import RewardHung, RewardPool, RewardProcessDied
from spotlight.runtime.judge import Picture, Scored

TRACEBACKS_LOGGED = 20
"""Per node: a broken reward raises at every picture."""

log = logging.getLogger("spotlight.judge")


class RewardLog:
    """Writes tracebacks of the reward to the log of its node; called with each error, returns the reason to give."""

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
    """Implements `judge.ScoringProcess`; the process starts, and loads the reward, as soon as this is made."""

    def __init__(self, reward: str, timeout_s: float) -> None:
        self._reward = reward
        self._timeout_s = timeout_s
        self._pool = RewardPool(1, timeout_s)
        self._version = ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="judge")
        # Loading a reward takes seconds: it is done while the workers load their model.
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
        pool = self._pool
        try:
            self._version = self._version or pool.version(self._reward)
            scores = pool.score(self._reward, [item.image for item in items], [item.prompt for item in items])
        except (RewardHung, RewardProcessDied):
            self._pool = RewardPool(1, self._timeout_s)
            pool.close()
            raise
        return Scored(scores, f"{self._reward} {self._version}")
