"""The picture bank: pretraining images rendered once, image i from (seed, i) alone.

Invariant: the bank does not depend on the number of rendering processes (tests/unit/test_pretrain.py).
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
    """Images and their prompts."""

    images_NHWC: NDArray[np.uint8]
    prompts: tuple[Prompt, ...]


def picture(family_name: str, seed: int, index: int) -> tuple[Prompt, NDArray[np.uint8]]:
    """Render image `index` of the bank of that seed."""
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
    """Render images 0 .. count-1; `progress` receives the number done."""
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
