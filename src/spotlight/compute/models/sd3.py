"""Stable Diffusion 3 and 3.5: a joint transformer over square latents, text of two CLIPs and T5 without a mask.

The transformer takes latents_BCHW and cuts them into patches itself; x_BSC is the same numbers in the order of its
patches. Guidance runs both halves in one forward, negative first, as the pipeline does.
"""

from typing import Any

import torch
from torch import Tensor

from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.models.family_registry import SD3
from spotlight.compute.models.packing import patchify, unpatchify
from spotlight.compute.models.pipeline_adapter import PipelineAdapter
from spotlight.core.types import Size


class SD3Adapter(PipelineAdapter):
    """Stable Diffusion 3 on one device."""

    facts = SD3
    batches_guidance = SD3.batches_guidance
    spaces_sigmas = False

    def _forward(self, x_BSC: Tensor, timestep_B: Tensor, cond: ConditionBatch, guidance: float, size: Size) -> Tensor:
        patch, (rows, columns) = self.geometry.patch, self.geometry.grid(size)
        assert cond.pooled is not None
        velocity_BCHW: Tensor = self.transformer(
            hidden_states=unpatchify(x_BSC, patch, self.geometry.latent_channels, rows * patch, columns * patch),
            timestep=timestep_B,
            encoder_hidden_states=cond.embeds.to(x_BSC.dtype),
            pooled_projections=cond.pooled.to(x_BSC.dtype),
            return_dict=False,
        )[0]
        return patchify(velocity_BCHW, patch)

    @staticmethod
    def encode_one(pipeline: Any, text: str, device: torch.device, most_tokens: int) -> tuple[Tensor, Tensor]:
        embeds_1TD, _, pooled_1D, _ = pipeline.encode_prompt(
            text, None, None, device=device, do_classifier_free_guidance=False, max_sequence_length=most_tokens
        )
        return embeds_1TD, pooled_1D
