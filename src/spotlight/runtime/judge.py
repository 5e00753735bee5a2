"""Scores finished pictures on their node, in reward processes, a few milliseconds' worth of arrivals at a time.

Invariant: every picture gets a verdict, in bounded time. Where the reward fails twice at a picture, that is a NaN with
the reason, and the others of its batch are scored without it (tests/unit/test_judge.py, tests/processes/test_pool.py).
"""

import asyncio
import contextlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError, deserialize

from spotlight.compute.rewards.pool import RewardHung, RewardPool
from spotlight.compute.rewards.protocol import Image, Scores
from spotlight.core.errors import RewardError
from spotlight.core.messages import Score
from spotlight.core.types import Prompt

GATHER_S = 0.004
"""How long a picture waits for company: short against the 25 ms that reading one word takes."""
BATCH = 64
"""Pictures per batch; keeps the wait of the last one bounded."""
HUNG_ALLOWED = 2
"""Pictures of a batch that the reward may hang at before the rest of the batch is given up."""
IMAGE = "image"
"""Key of the picture among a result's tensors: uint8, height x width x 3."""
PAYLOAD = "payload"
"""Key of the bytes that are trained on, where there are any: uint8."""


@dataclass(frozen=True)
class Parcel:
    """What a finished sample brings to its node's agent."""

    image: Image
    payload: bytes | None


@dataclass(frozen=True)
class Verdict:
    """A score, or NaN and the reason."""

    score: Score
    problem: str = ""


@dataclass(frozen=True)
class _Case:
    image: Image
    prompt: Prompt
    verdict: asyncio.Future[Verdict]


class Judge:
    """One task per reward process takes batches from one queue; scoring itself waits in a thread."""

    def __init__(self, reward: str, processes: int, timeout_s: float) -> None:
        self._reward = reward
        self._processes = processes
        self._timeout_s = timeout_s
        self._pool = RewardPool(processes, timeout_s)
        self._scorer = ""
        self._queue: asyncio.Queue[_Case] = asyncio.Queue()
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="judge")
        # Loading a judge takes seconds: do it while the workers load their model.
        self._threads.submit(self._warm_up)
        self._tasks = [asyncio.create_task(self._sit()) for _ in range(processes)]

    async def judge(self, image: Image, prompt: Prompt) -> Verdict:
        case = _Case(image, prompt, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(case)
        return await case.verdict

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._pool.close)
        self._threads.shutdown()

    async def _sit(self) -> None:
        """Waits for pictures, which finished samples bring; ends with `close`."""
        while True:
            batch = [await self._queue.get()]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATHER_S):
                    while len(batch) < BATCH:
                        batch.append(await self._queue.get())
            verdicts = await asyncio.get_running_loop().run_in_executor(self._threads, self._verdicts, batch)
            for case, verdict in zip(batch, verdicts, strict=True):
                if not case.verdict.done():
                    case.verdict.set_result(verdict)

    def _verdicts(self, batch: Sequence[_Case]) -> list[Verdict]:
        """In a thread. A batch that fails is judged one by one, to find the pictures that the reward cannot take.

        One that fails may have done nothing wrong: a process that another picture killed takes all shards with it. So
        each gets a second try, in a new process if need be. If two of them hang, the reward does, and waiting for
        every single one would take hours.
        """
        try:
            return self._scored(batch)
        except Exception:  # a judge that stopped sitting would hold every later sample back
            verdicts: list[Verdict] = []
            hung = 0
            for case in batch:
                try:
                    verdicts += self._scored([case])
                except Exception as error:
                    verdicts.append(no_verdict(str(error) or type(error).__name__, self._scorer))
                    hung += isinstance(error, RewardHung)
                if hung >= HUNG_ALLOWED:
                    break
            return verdicts + [verdicts[-1]] * (len(batch) - len(verdicts))

    def _scored(self, batch: Sequence[_Case]) -> list[Verdict]:
        scores = self._score(batch)
        return [
            Verdict(
                Score(
                    reward=float(scores.total[index]),
                    components={name: float(values[index]) for name, values in scores.components.items()},
                    scorer=self._scorer,
                )
            )
            for index in range(len(batch))
        ]

    def _warm_up(self) -> None:
        with contextlib.suppress(Exception):  # the first picture tells
            self._scorer = f"{self._reward} {self._pool.version(self._reward)}"

    def _score(self, batch: Sequence[_Case]) -> Scores:
        pool = self._pool
        try:
            self._scorer = self._scorer or f"{self._reward} {pool.version(self._reward)}"
            return pool.score(self._reward, [case.image for case in batch], [case.prompt for case in batch])
        except RewardError as error:
            if isinstance(error, RewardHung) or isinstance(error.__cause__, BrokenProcessPool):
                self._renew(pool)
            raise

    def _renew(self, broken: RewardPool) -> None:
        """A pool that lost a process takes no more work; the next batch gets a new one."""
        if self._pool is broken:
            self._pool = RewardPool(self._processes, self._timeout_s)
            broken.close()


def unpack(blob: bytes) -> Parcel:
    """What a worker sent with a result."""
    try:
        tensors = dict(deserialize(blob)) if blob else {}
    except SafetensorError as error:
        raise RewardError(
            f"the {len(blob)} bytes of a result are no safetensors ({error}), so that there is no picture to judge; "
            "look at the worker's log."
        ) from error
    image, payload = tensors.get(IMAGE), tensors.get(PAYLOAD)
    if image is None or image["dtype"] != "U8" or len(image["shape"]) != 3:
        found = ", ".join(f"{name} {part['dtype']}{part['shape']}" for name, part in sorted(tensors.items()))
        raise RewardError(
            f"a result holds {found or 'no tensors'}, but a judge needs '{IMAGE}' as U8 of height x width x 3; let the "
            "worker decode the sample."
        )
    pixels = np.frombuffer(image["data"], dtype=np.uint8).reshape(image["shape"])
    return Parcel(pixels, bytes(payload["data"]) if payload is not None else None)


def no_verdict(problem: str, scorer: str = "") -> Verdict:
    """The sample is kept, unscored."""
    return Verdict(Score(reward=math.nan, scorer=scorer), problem)
