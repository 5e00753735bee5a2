"""The worlds of the tiny families: their prompts, and images of them from a seed; free of torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spotlight.compute.data import scenes, words
from spotlight.compute.data.order import PromptOrder
from spotlight.compute.data.vocabulary import Vocabulary
from spotlight.core.errors import InputError, suggestion
from spotlight.core.types import Prompt, Size

HELD_OUT_ORDER = 0
"""Seed of the order of held-out prompts; fixed, so that scores of different runs compare."""


@dataclass(frozen=True, kw_only=True)
class World:
    """Prompts, pretraining images and rewards of a tiny family."""

    name: str
    size: Size
    """Size of its images."""
    vocabulary: Vocabulary
    """Tokens of its families' text encoder."""
    prompts: Callable[[str], list[Prompt]]
    pretraining_prompt: Callable[[np.random.Generator], Prompt]
    render: Callable[[Prompt, np.random.Generator], NDArray[np.uint8]]
    reward: str
    """Graded reward, for training."""
    judge: str
    """Reward reported beside it; for words a second recogniser that training never uses, to reveal reward hacking."""

    def held_out(self, count: int) -> list[Prompt]:
        """Held-out prompts, identical in every evaluation, tasks in equal numbers."""
        return in_held_out_order(self.prompts("test"), count)


def in_held_out_order(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """Return `count` prompts, tasks alternating; every prompt of a task comes once before any repeats."""
    return PromptOrder(prompts, HELD_OUT_ORDER).take(0, count)


WORDS = World(
    name="words",
    size=words.SIZE,
    vocabulary=words.VOCABULARY,
    prompts=words.prompts,
    pretraining_prompt=words.pretraining_prompt,
    render=words.render,
    reward="ocr_graded",
    judge="ocr_judge",
)
SCENES = World(
    name="scenes",
    size=scenes.SIZE,
    vocabulary=scenes.VOCABULARY,
    prompts=scenes.prompts,
    pretraining_prompt=scenes.pretraining_prompt,
    render=scenes.render,
    reward="geneval",
    judge="geneval_strict",
)
WORLD_OF_FAMILY = {"words": WORDS, "words-large": WORDS, "scenes": SCENES}


def world(family: str) -> World:
    if family not in WORLD_OF_FAMILY:
        raise InputError(f"there is no model family '{family}': {suggestion(family, WORLD_OF_FAMILY)}")
    return WORLD_OF_FAMILY[family]
