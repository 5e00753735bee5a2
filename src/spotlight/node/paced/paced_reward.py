"""Reward of a paced run: brightness of a corner of the picture, after the profile's scoring time.

Reward processes receive only the reward's name, so the duration is in the name: `name_of(0.016)` is
`spotlight.node.paced.paced_reward:us_16000`, microseconds per picture.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

from spotlight.compute.rewards.protocol import Image, Scores
from spotlight.core.types import Prompt

PREFIX = "us_"
CORNER = 4
"""Side of the corner in pixels: small enough that pictures of noise differ."""


class PacedReward:
    """Deterministic, and cheap apart from the wait."""

    name = "paced"
    version = "paced-1"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def score(self, images: Sequence[Image], prompts: Sequence[Prompt]) -> Scores:
        due = time.monotonic() + self._seconds * len(images)
        total = np.array([image[:CORNER, :CORNER].mean() / 255.0 for image in images], dtype=np.float64)
        time.sleep(max(0.0, due - time.monotonic()))
        return Scores(total=total)


def name_of(seconds: float) -> str:
    return f"{__name__}:{PREFIX}{round(seconds * 1e6)}"


def __getattr__(name: str) -> Callable[[], PacedReward]:
    microseconds = name.removeprefix(PREFIX)
    if microseconds == name or not microseconds.isdecimal():
        raise AttributeError(f"module {__name__} has no {name}")
    return lambda: PacedReward(int(microseconds) / 1e6)
