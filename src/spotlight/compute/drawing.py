"""Pictures by identity, one at a time: the picture of a prompt and a seed depends on no other picture of the command.

Invariant: in fp32 on a CPU it is the picture that the family's own diffusers pipeline makes of the prompt and
`pipeline_latents` (tests/conformance/test_drawing.py). A run's held-out pictures have the same noise but are drawn in
batches and with padded text, so that last bits differ.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence

import diffusers
import torch

from spotlight.compute.evaluation import generate
from spotlight.compute.models.adapter import Adapter
from spotlight.compute.models.packing import unpatchify
from spotlight.compute.models.pipeline_adapter import PipelineAdapter
from spotlight.compute.rewards.protocol import Image
from spotlight.compute.rollout.noise import initial_noise
from spotlight.compute.scores import EVALUATION_SEED
from spotlight.core.types import Prompt, Sample, Sampling, Version

TINY_STEPS = 10


def draw(
    adapter: Adapter,
    pairs: Sequence[tuple[Prompt, int]],
    sampling: Sampling,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Image]:
    """One uint8 picture per (prompt, seed); `progress` receives the number of finished pictures."""
    if isinstance(adapter, PipelineAdapter):
        adapter.pads_text = False
    prompts, seeds = [prompt for prompt, _ in pairs], [seed for _, seed in pairs]
    return generate(adapter, prompts, sampling, EVALUATION_SEED, seeds, batch=1, progress=progress)


def pipeline_latents(adapter: Adapter, pairs: Sequence[tuple[Prompt, int]], sampling: Sampling) -> torch.Tensor:
    """Initial latents of the pictures, in the shape that `latents=` of the family's pipeline takes."""
    samples = [Sample(prompt=prompt.id, seed=seed, sampling=sampling, version=Version(0)) for prompt, seed in pairs]
    x_BSC = initial_noise(EVALUATION_SEED, samples, adapter.latent_shape(sampling.size))
    if not isinstance(adapter, PipelineAdapter) or adapter.facts.is_packed:
        return x_BSC
    geometry = adapter.geometry
    rows, columns = (side * geometry.patch for side in geometry.grid(sampling.size))
    return unpatchify(x_BSC, geometry.patch, geometry.latent_channels, rows, columns).contiguous()


def default_steps(adapter: Adapter) -> int:
    """Default of the family's pipeline."""
    return int(_call_of(adapter)["num_inference_steps"].default) if isinstance(adapter, PipelineAdapter) else TINY_STEPS


def default_guidance(adapter: Adapter) -> float:
    """Default of the family's pipeline, for the kind of guidance that the model uses."""
    if not isinstance(adapter, PipelineAdapter):
        return 1.0
    call = _call_of(adapter)
    is_true = "true_cfg_scale" in call and not adapter.embeds_guidance
    return float(call["true_cfg_scale" if is_true else "guidance_scale"].default)


def _call_of(adapter: PipelineAdapter) -> Mapping[str, inspect.Parameter]:
    """Arguments of the family's pipeline."""
    return inspect.signature(getattr(diffusers, adapter.facts.pipeline).__call__).parameters
