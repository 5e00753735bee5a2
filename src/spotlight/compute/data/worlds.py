"""The worlds that the tiny families draw: their prompts, and pictures of them from a seed; free of torch."""

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
"""Seed of the order in which held-out prompts are taken; fixed, so that scores of different runs compare."""


@dataclass(frozen=True, kw_only=True)
class World:
    """What a tiny family was shown, and how its drawings are judged."""

    name: str
    size: Size
    """Of its pictures."""
    vocabulary: Vocabulary
    """What its families' text encoder reads."""
    prompts: Callable[[str], list[Prompt]]
    pretraining_prompt: Callable[[np.random.Generator], Prompt]
    render: Callable[[Prompt, np.random.Generator], NDArray[np.uint8]]
    reward: str
    """Graded, for training."""
    judge: str
    """Reported beside it; for words a second recogniser that training never sees, so that reward hacking shows."""

    def held_out(self, count: int) -> list[Prompt]:
        """The same held-out prompts for every evaluation, tasks in equal numbers."""
        return in_held_out_order(self.prompts("test"), count)


def in_held_out_order(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` prompts, tasks in turn; every prompt of a task comes once before any comes again."""
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
