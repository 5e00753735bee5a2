"""Scores finished pictures on their node: one queue, several reward processes, one batch at a time in each.

    batch --scores--> a verdict for each picture
      `--the reward raised, or its process died or hung--> each picture of the batch alone
    picture alone --score--> its verdict
      |--its process died--> again, in a new process, up to DEATHS_ALLOWED times
      `--the reward raised, its process hung, or died too often--> unscored, with the reason

The simulator drives the same class over simulated reward processes; `node/reward_process.py` is the real one.

Invariants (tests/unit/test_judge.py, tests/processes/test_run.py, tests/storm): every picture gets a verdict
in bounded time, and the death of a reward process, idle or busy, leaves no picture unscored.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np
from safetensors import SafetensorError, deserialize

from spotlight.compute.rewards.protocol import JUDGE, Image, Scores
from spotlight.compute.rewards.reward_pool import RewardHung, RewardProcessDied
from spotlight.core.errors import RewardError
from spotlight.core.messages import Score
from spotlight.core.types import Prompt

GATHER_S = 0.004
"""Wait of a picture for others to share its batch: short against the 25 ms for reading one word."""
BATCH = 16
"""Pictures per batch: the fastest size of the reading model, and small enough to spread a burst over the processes."""
DEATHS_ALLOWED = 4
"""Processes in a row that may die over one picture alone before it stays unscored."""
HUNG_ALLOWED = 2
"""Hangs per batch, over pictures alone, before the rest of the batch stays unscored."""
IMAGE = "image"
"""Key of the picture among a result's tensors: uint8, height x width x 3."""
PAYLOAD = "payload"
"""Key of the training tensors' bytes, if any: uint8."""

Item = TypeVar("Item")
Taken = TypeVar("Taken", contravariant=True)


def longest_verdict_s(timeout_s: float) -> float:
    """Seconds until the first verdict on a batch that the reward hangs at: the batch, then pictures alone."""
    return (1 + HUNG_ALLOWED) * timeout_s


@dataclass(frozen=True)
class Picture:
    """Input of a reward."""

    image: Image
    prompt: Prompt
    is_judged: bool = False
    """Whether the second judge scores it too."""


@dataclass(frozen=True)
class Parcel:
    """Content of a finished sample's result."""

    image: Image
    payload: bytes | None


@dataclass(frozen=True)
class Verdict:
    """A score, or NaN with the reason."""

    score: Score
    problem: str = ""


@dataclass(frozen=True)
class Scored:
    """Scores of a batch, and the name and version of the reward that gave them."""

    scores: Scores
    scorer: str
    judged: Mapping[int, float] = field(default_factory=dict)
    """The second judge's scores, by the index of the picture."""


class ScoringProcess(Protocol[Taken]):
    """One reward process; it takes one batch at a time."""

    async def score(self, items: Sequence[Taken]) -> Scored:
        """Score a batch; after RewardProcessDied or RewardHung the next call uses a new process."""

    async def close(self) -> None: ...


@dataclass(frozen=True)
class _Case(Generic[Item]):
    item: Item
    verdict: asyncio.Future[Verdict]


class Judge(Generic[Item]):
    """One task per reward process takes batches from the queue; `judge` waits for the verdict on one picture."""

    def __init__(self, processes: Sequence[ScoringProcess[Item]], report: Callable[[Exception], str] = str) -> None:
        """`report` logs an error's traceback and returns the reason recorded with an unscored picture."""
        self._processes = processes
        self._report = report
        self._queue: asyncio.Queue[_Case[Item]] = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._serve(process)) for process in processes]

    async def judge(self, item: Item) -> Verdict:
        case = _Case(item, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(case)
        return await case.verdict

    def cancel(self) -> None:
        """Stop all tasks; no verdict follows."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(process.close() for process in self._processes))

    async def _serve(self, process: ScoringProcess[Item]) -> None:
        """Take batches of pictures from the queue until `close`."""
        while True:
            batch = [await self._queue.get()]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GATHER_S):
                    while len(batch) < BATCH:
                        batch.append(await self._queue.get())
            verdicts = await self._verdicts(process, [case.item for case in batch])
            for case, verdict in zip(batch, verdicts, strict=True):
                if not case.verdict.done():
                    case.verdict.set_result(verdict)

    async def _verdicts(self, process: ScoringProcess[Item], items: Sequence[Item]) -> list[Verdict]:
        try:
            return await _scored(process, items)
        except Exception as error:  # if this task ended, every later sample would stay unscored
            self._report(error)
        verdicts: list[Verdict] = []
        hung = 0
        for item in items:
            try:
                verdicts.append(await self._alone(process, item))
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
    return [
        Verdict(
            Score(
                reward=float(found.scores.total[index]),
                components={name: float(values[index]) for name, values in found.scores.components.items()}
                | ({JUDGE: found.judged[index]} if index in found.judged else {}),
                scorer=found.scorer,
            )
        )
        for index in range(len(items))
    ]


def unscored(problem: str) -> Verdict:
    """Verdict of a sample that is kept without a score."""
    return Verdict(Score(reward=math.nan), problem)


def unpack(blob: bytes) -> Parcel:
    """Decode the blob of a worker's Result."""
    try:
        tensors = dict(deserialize(blob)) if blob else {}
    except SafetensorError as error:
        raise RewardError(
            f"the {len(blob)} bytes of a result do not decode as safetensors ({error}), so there is no picture to "
            "score; see the worker's log."
        ) from error
    image, payload = tensors.get(IMAGE), tensors.get(PAYLOAD)
    if image is None or image["dtype"] != "U8" or len(image["shape"]) != 3:
        found = ", ".join(f"{name} {part['dtype']}{part['shape']}" for name, part in sorted(tensors.items()))
        raise RewardError(
            f"a result holds {found or 'no tensors'}, but a reward needs '{IMAGE}' as U8 of height x width x 3; let "
            "the worker decode the sample."
        )
    pixels = np.frombuffer(image["data"], dtype=np.uint8).reshape(image["shape"])
    return Parcel(pixels, bytes(payload["data"]) if payload is not None else None)
