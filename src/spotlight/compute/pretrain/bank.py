"""The picture bank: pretraining data rendered once, picture i from (seed, i) alone.

The bank is the same whatever the number of processes that render it (tests/unit/test_pretrain.py).
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spotlight.compute.data.worlds import world
from spotlight.core.rng import Purpose, derive_key, generator
from spotlight.core.types import Prompt

CHUNK = 500


@dataclass(frozen=True)
class PictureBank:
    """Pictures and what each of them shows."""

    images_NHWC: NDArray[np.uint8]
    prompts: tuple[Prompt, ...]


def picture(family_name: str, seed: int, index: int) -> tuple[Prompt, NDArray[np.uint8]]:
    """Picture `index` of the bank of that seed."""
    drawn = world(family_name)
    rng = generator(derive_key(Purpose.DATA, seed, index))
    prompt = drawn.pretraining_prompt(rng)
    return prompt, drawn.render(prompt, rng)


def render_bank(
    family_name: str,
    seed: int,
    count: int,
    processes: int,
    progress: Callable[[int], None] = lambda done: None,
) -> PictureBank:
    """All pictures 0 .. count-1; `progress` hears how many are done."""
    chunks = [(family_name, seed, start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]
    images: list[NDArray[np.uint8]] = []
    prompts: list[Prompt] = []
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as executor:
        for chunk_prompts, chunk_images in executor.map(_render_chunk, *zip(*chunks, strict=True)):
            prompts += chunk_prompts
            images.append(chunk_images)
            progress(len(prompts))
    return PictureBank(np.concatenate(images), tuple(prompts))


def _render_chunk(family_name: str, seed: int, start: int, stop: int) -> tuple[list[Prompt], NDArray[np.uint8]]:
    pairs = [picture(family_name, seed, index) for index in range(start, stop)]
    return [prompt for prompt, _ in pairs], np.stack([image for _, image in pairs])
