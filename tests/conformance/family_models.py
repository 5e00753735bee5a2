"""A tiny random checkpoint of one family, loaded twice: by its adapter and by its own diffusers pipeline."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import torch

from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.models.family_registry import FAMILIES, Family
from spotlight.compute.models.packing import patchify, unpatchify
from spotlight.compute.models.pipeline_adapter import PipelineAdapter
from spotlight.compute.models.random_weights import write_tiny
from spotlight.core.types import Prompt, PromptId, Sample, SamplerKind, Sampling, Size, Version, Window

SIZE = Size(64, 96)
# At this size and step count the pipelines' 1000 sigma / 1000 moves a sigma of Qwen-Image by an ulp.
STEPS = 28
GUIDANCE = {"sd3": 4.5, "flux": 3.5, "qwen-image": 4.0}
TEXTS = ("a cat", 'a red boat on the sea, "HARBOUR" on its sail')


@dataclass
class FamilyModel:
    """Adapter and pipeline share files, not modules."""

    family: Family
    folder: Path
    adapter: PipelineAdapter
    pipeline: Any

    def conditions(
        self, texts: tuple[str, ...] = TEXTS, guided: bool = True, bucketed: bool = False
    ) -> tuple[ConditionBatch, ConditionBatch | None]:
        """Conditions at the pipeline's own width, that of the longest prompt, or in our buckets."""
        conds = self.adapter.encode([Prompt(text=text) for text in texts])
        negative = self.adapter.unconditional()
        width = None if bucketed else max(len(cond.embeds) for cond in (*conds, negative))
        uncond = self.adapter.collate([negative] * len(texts), width) if guided else None
        return self.adapter.collate(conds, width), uncond

    def run_pipeline(
        self,
        x_BSC: torch.Tensor,
        cond: ConditionBatch,
        uncond: ConditionBatch | None,
        guidance: float,
        output_type: str = "latent",
        steps: int = STEPS,
    ) -> torch.Tensor:
        call: dict[str, Any] = {"prompt_embeds": cond.embeds}
        if uncond is not None:
            call["negative_prompt_embeds"] = uncond.embeds
        if self.family.name == "qwen-image":
            call |= {"prompt_embeds_mask": cond.mask, "true_cfg_scale": guidance}
            call |= {"negative_prompt_embeds_mask": uncond.mask} if uncond is not None else {}
        else:
            call |= {"pooled_prompt_embeds": cond.pooled, "guidance_scale": guidance}
            call |= {"negative_pooled_prompt_embeds": uncond.pooled} if uncond is not None else {}
        return self.call_pipeline(x_BSC, output_type, steps, **call)

    def call_pipeline(self, x_BSC: torch.Tensor, output_type: str, steps: int = STEPS, **call: Any) -> torch.Tensor:
        is_square = self.family.name == "sd3"
        latents = unpatchify(x_BSC, 2, 16, SIZE.height // 8, SIZE.width // 8) if is_square else x_BSC
        images = self.pipeline(
            **call,
            latents=latents,
            height=SIZE.height,
            width=SIZE.width,
            num_inference_steps=steps,
            output_type=output_type,
        ).images
        return patchify(images, 2) if is_square and output_type == "latent" else images


def written(name: str, folder: Path) -> Path:
    return write_tiny(FAMILIES[name], folder)


def loaded(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> PipelineAdapter:
    return FAMILIES[name].load_adapter_class().from_pretrained(str(folder), "cpu", dtype)


def family_model(name: str, folder: Path) -> FamilyModel:
    pipeline = getattr(diffusers, FAMILIES[name].pipeline).from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    return FamilyModel(FAMILIES[name], folder, loaded(name, folder), pipeline)


def noise(rows: int, size: Size = SIZE) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(rows, size.height * size.width // 256, 64, generator=generator)


def ode_samples(rows: int, guidance: float, steps: int = STEPS) -> list[Sample]:
    sampling = Sampling(steps=steps, size=SIZE, guidance=guidance)
    return [Sample(prompt=PromptId("p"), seed=row, sampling=sampling, version=Version(0)) for row in range(rows)]


def windowed_samples(guidance: float, steps: int, window: int) -> list[Sample]:
    """Two samples of each of two prompts; the second prompt's window starts a step later."""
    return [
        Sample(
            prompt=PromptId(f"p{row // 2}"),
            seed=row,
            sampling=Sampling(
                steps=steps,
                size=SIZE,
                sampler=SamplerKind.FLOW_SDE,
                noise_level=0.7,
                window=Window(row // 2, window),
                guidance=guidance,
            ),
            version=Version(0),
        )
        for row in range(4)
    ]
