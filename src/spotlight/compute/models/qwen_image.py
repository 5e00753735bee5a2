"""Qwen-Image: a dual-stream transformer over packed latents, masked text, guidance rescaled to the conditional norm."""

from typing import Any

import torch
from torch import Tensor

from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.models.family_registry import QWEN_IMAGE
from spotlight.compute.models.pipeline_adapter import PipelineAdapter
from spotlight.compute.models.qwen_dit import text_mask, true_cfg
from spotlight.core.types import Size


class QwenImageAdapter(PipelineAdapter):
    """Qwen-Image on one device."""

    facts = QWEN_IMAGE

    def _forward(self, x_BSC: Tensor, timestep_B: Tensor, cond: ConditionBatch, guidance: float, size: Size) -> Tensor:
        velocity_BSC: Tensor = self.transformer(
            hidden_states=x_BSC,
            # The pipeline's timestep, 1000 sigma / 1000 in fp32, is at times an ulp off sigma; cast it only once.
            timestep=(timestep_B / 1000).to(x_BSC.dtype),
            encoder_hidden_states=cond.embeds.to(x_BSC.dtype),
            img_shapes=[[(1, *self.geometry.grid(size))]] * len(x_BSC),
            return_dict=False,
            **text_mask(self.fast, cond.mask, self.pads_text),
        )[0]
        return velocity_BSC

    def _guided(self, cond_BSC: Tensor, uncond_BSC: Tensor, guidance: float) -> Tensor:
        return true_cfg(cond_BSC, uncond_BSC, guidance)

    def _unscaled(self, latents_BCHW: Tensor) -> Tensor:
        config = self._vae.config
        mean_C11 = torch.tensor(config.latents_mean, device=self._device).view(-1, 1, 1)
        # Division by the reciprocal, as in the pipeline: a product with the deviation differs in the last bit.
        inverse_std_C11 = 1.0 / torch.tensor(config.latents_std, device=self._device).view(-1, 1, 1)
        return latents_BCHW / inverse_std_C11 + mean_C11

    def _decode_one(self, latents_1CHW: Tensor) -> Tensor:
        """The VAE is a video's: an image is its first frame."""
        video_13FHW: Tensor = self._vae.decode(latents_1CHW.unsqueeze(2), return_dict=False)[0]
        return video_13FHW[:, :, 0]

    @staticmethod
    def encode_one(pipeline: Any, text: str, device: torch.device, most_tokens: int) -> tuple[Tensor, None]:
        embeds_1TD, _ = pipeline.encode_prompt(text, device=device, max_sequence_length=most_tokens)
        return embeds_1TD, None
