"""A reward that is slow on reserved nodes: a run makes few iterations while its machines start, die and return."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from spotlight.compute.rewards.jpeg import JpegCompressibility
from spotlight.compute.rewards.protocol import Image, Scores
from spotlight.core.types import Prompt

PAUSE = "SPOTLIGHT_UNHURRIED_S"
"""Seconds per call."""


class Unhurried(JpegCompressibility):
    """Finds its node in the command of its agent."""

    def score(self, images: Sequence[Image], prompts: Sequence[Prompt]) -> Scores:
        if b"/reserved-" in Path(f"/proc/{os.getppid()}/cmdline").read_bytes():
            time.sleep(float(os.environ.get(PAUSE, "0")))
        return super().score(images, prompts)
