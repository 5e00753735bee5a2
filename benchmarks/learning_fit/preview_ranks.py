"""Measurement of previews by second-order steps and in fp8: how their rewards correlate with exact ones."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext

from benchmarks.learning_fit.run import BATCH, EXACT_STEPS, Floats, PreviewRanks, pooled_correlation

SECOND_ORDER_STEPS = (4, 5, 6)
FP8_STEPS = 5
PROMPTS, SEEDS = 16, 24


def measure_ranks(family: str, device: str) -> PreviewRanks:
    """Draw groups of the base model, exactly and as previews from the same noise."""
    import torch

    from spotlight.compute.data.order import PromptOrder
    from spotlight.compute.evaluation import generate
    from spotlight.compute.fast.fp8 import rounding
    from spotlight.compute.models import families
    from spotlight.compute.rewards.in_process import InProcessScorer
    from spotlight.compute.train.recomputation import blocks_of
    from spotlight.core.types import SamplerKind, Sampling

    torch.set_num_threads(1)
    adapter = families.load(family, device)
    adapter.transformer.requires_grad_(False)
    world, judge, blocks = families.world_of(adapter), InProcessScorer(device), blocks_of(adapter.transformer)
    taken = PromptOrder(world.prompts("train"), 0).take(0, PROMPTS)
    prompts = [prompt for prompt in taken for _ in range(SEEDS)]

    def rewards(steps: int, solver: SamplerKind, rounded: Sequence[torch.nn.Module] = ()) -> Floats:
        print(f"{family}: {len(prompts)} pictures of {steps} steps", file=sys.stderr, flush=True)
        sampling = Sampling(steps=steps, size=adapter.native_size, sampler=solver)
        with rounding(rounded) if rounded else nullcontext():
            images = generate(adapter, prompts, sampling, 0, list(range(SEEDS)) * PROMPTS, BATCH)
        return judge.score(world.reward, images, prompts).total.reshape(PROMPTS, SEEDS)

    exact = rewards(EXACT_STEPS, SamplerKind.ODE)
    in_fp8 = rewards(FP8_STEPS, SamplerKind.ODE2, blocks)
    return PreviewRanks(
        prompts=PROMPTS,
        seeds=SEEDS,
        second_order={
            steps: pooled_correlation(rewards(steps, SamplerKind.ODE2), exact) for steps in SECOND_ORDER_STEPS
        },
        fp8_steps=FP8_STEPS,
        fp8=pooled_correlation(in_fp8, exact),
    )
