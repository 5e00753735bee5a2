"""Scores finished pictures on their node: every reward of the run scores each picture, in its own processes.

A picture's verdict is complete when all rewards have given theirs. If one fails, the picture has no score, with the
reason, and keeps the others' scores as components. A picture whose reward is unavailable waits for it. The simulator
drives the same class over simulated reward processes; `node/reward_process.py` is the real one.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic

import numpy as np
from safetensors import SafetensorError, deserialize

from spotlight.compute.rewards.combination import Verdict, combined
from spotlight.compute.rewards.config import Term
from spotlight.compute.rewards.protocol import Image
from spotlight.core.errors import RewardError
from spotlight.core.messages import RewardAwaited
from spotlight.core.types import Prompt
from spotlight.node.term_judge import Item, ScoringProcess, TermJudge

VERDICTS_S = 5.0
"""Delay of `Gone` for pending verdicts on the worker's finished samples, which then need not be repeated."""
IMAGE = "image"
"""Key of the picture among a result's tensors: uint8, height x width x 3."""
PAYLOAD = "payload"
"""Key of the training tensors' bytes, if any: uint8."""


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


class Judge(Generic[Item]):
    """One queue per reward; `judge` waits for the verdicts of all on one picture."""

    def __init__(
        self,
        processes: Sequence[tuple[Term, Sequence[ScoringProcess[Item]]]],
        report: Callable[[Exception], str] = str,
        waits: Callable[[RewardAwaited], None] = lambda awaited: None,
    ) -> None:
        """`report` logs an error's traceback and returns the reason recorded with an unscored picture. `waits` is
        called whenever the number of pictures that wait for an unavailable reward changes."""
        self._terms = [term for term, _ in processes]

        def count(term: Term, pictures: int, problem: str) -> None:
            waits(RewardAwaited(reward=term.key or term.name, pictures=pictures, problem=problem))

        self._judges = [TermJudge(those, term.batch, report, partial(count, term)) for term, those in processes]

    async def judge(self, item: Item) -> Verdict:
        return combined(self._terms, await asyncio.gather(*(judge.judge(item) for judge in self._judges)))

    def cancel(self) -> None:
        """Stop all tasks; no verdict follows."""
        for judge in self._judges:
            judge.cancel()

    async def close(self) -> None:
        await asyncio.gather(*(judge.close() for judge in self._judges))


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
