"""FLUX.1: double and single blocks over packed latents, T5 text of one width without a mask, pooled CLIP.

FLUX.1-dev takes the guidance as an input, so there is no second half. FLUX.1-schnell has no such input; guidance other
than 1 is then the pipeline's `true_cfg_scale`.
"""

from typing import Any

import torch
from torch import Tensor

from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.models.family_registry import FLUX
from spotlight.compute.models.pipeline_adapter import PipelineAdapter
from spotlight.core.types import Size


class FluxAdapter(PipelineAdapter):
    """FLUX.1 on one device."""

    facts = FLUX

    def __init__(self, transformer: Any, *components: Any, **options: Any) -> None:
        super().__init__(transformer, *components, **options)
        self.embeds_guidance = bool(transformer.config.guidance_embeds)
        self._tables: dict[Size, Tensor] = {}

    def _forward(self, x_BSC: Tensor, timestep_B: Tensor, cond: ConditionBatch, guidance: float, size: Size) -> Tensor:
        assert cond.pooled is not None
        velocity_BSC: Tensor = self.transformer(
            hidden_states=x_BSC,
            # Cast once: the pipeline's quotient of a rounded timestep differs in bf16.
            timestep=(timestep_B / 1000).to(x_BSC.dtype),
            guidance=timestep_B.new_full(timestep_B.shape, guidance) if self.embeds_guidance else None,
            pooled_projections=cond.pooled.to(x_BSC.dtype),
            encoder_hidden_states=cond.embeds.to(x_BSC.dtype),
            txt_ids=torch.zeros(cond.embeds.shape[1], 3, device=self._device),
            img_ids=self._positions(size),
            return_dict=False,
        )[0]
        return velocity_BSC

    def _positions(self, size: Size) -> Tensor:
        """(0, row, column) of every token; copied to the device once per size."""
        if size not in self._tables:
            rows, columns = self.geometry.grid(size)
            ranges = (torch.zeros(1), torch.arange(rows), torch.arange(columns))
            self._tables[size] = torch.cartesian_prod(*(axis.float() for axis in ranges)).to(self._device)
        return self._tables[size]

    @staticmethod
    def encode_one(pipeline: Any, text: str, device: torch.device, most_tokens: int) -> tuple[Tensor, Tensor]:
        embeds_1TD, pooled_1D, _ = pipeline.encode_prompt(text, device=device, max_sequence_length=most_tokens)
        return embeds_1TD, pooled_1D
