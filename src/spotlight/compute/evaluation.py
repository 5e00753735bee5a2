"""Held-out evaluation in one process: fixed prompts and seeds are sampled and scored."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from spotlight.compute.models.adapter import Adapter
from spotlight.compute.rewards.config import Term
from spotlight.compute.rewards.protocol import Image, Scorer
from spotlight.compute.rewards.reward_pool import term_of
from spotlight.compute.rollout.denoise import roll_out
from spotlight.compute.scores import EVALUATION_SEED, Evaluation
from spotlight.core.types import Prompt, Sample, Sampling, Version


def generate(
    adapter: Adapter,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    run_seed: int,
    seeds: Iterable[int],
    batch: int,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Image]:
    """Return one uint8 image per (prompt, seed) pair; `progress` receives the number of finished images."""
    pairs = list(zip(prompts, seeds, strict=True))
    images: list[Image] = []
    for start in range(0, len(pairs), batch):
        chunk = pairs[start : start + batch]
        samples = [Sample(prompt=prompt.id, seed=seed, sampling=sampling, version=Version(0)) for prompt, seed in chunk]
        cond = adapter.collate(adapter.encode([prompt for prompt, _ in chunk]))
        uncond = adapter.collate([adapter.unconditional()] * len(chunk)) if sampling.guidance != 1.0 else None
        rollout = roll_out(adapter, samples, cond, uncond, run_seed)
        images += to_images(adapter.decode(rollout.x0_BSC, sampling.size))
        progress(len(images))
    return images


def to_images(pixels_BCHW: torch.Tensor) -> list[Image]:
    """Round 0..1 to the uint8 that rewards see; contiguous, because safetensors writes an array's memory as is."""
    pixels_BHWC = (pixels_BCHW * 255.0).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    return list(pixels_BHWC.cpu().numpy())


def evaluate(
    adapter: Adapter,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    rewards: Sequence[Term | str],
    pool: Scorer,
    batch: int = 64,
    progress: Callable[[str, int], None] = lambda stage, done: None,
) -> Evaluation:
    """Sample every prompt once with the evaluation seeds and score it; `progress` receives the stage and its count."""
    seeds = range(len(prompts))
    images = generate(adapter, prompts, sampling, EVALUATION_SEED, seeds, batch, partial(progress, "drawing"))
    terms = map(term_of, rewards)
    scores = tuple(pool.score(term, images, prompts, partial(progress, f"scoring with {term.name}")) for term in terms)
    return Evaluation(prompts=tuple(prompts), images=images, scores=scores)
