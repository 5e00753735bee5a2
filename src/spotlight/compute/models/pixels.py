"""Tiny families for a laptop: diffusers' own Qwen-Image transformer on pixel patches instead of VAE latents.

Twelve heads and token counts that divide by 12 make sequence-parallel degrees 1, 2, 3, 4 and 6 legal. The transformer
predicts the clean image and `velocity` converts it. An 8x8 RGB patch has 192 dimensions, more than the model's width,
so the residual stream cannot carry the noise that a velocity contains; it can carry an image.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor

from spotlight.compute.fast.fast_model import FastModel
from spotlight.compute.models.adapter import ConditionBatch, Conditioning
from spotlight.compute.models.packing import patchify, unpatchify
from spotlight.compute.models.qwen_dit import LORA_TARGETS, text_mask, true_cfg
from spotlight.compute.models.text_table import TextTable
from spotlight.compute.rollout import schedules
from spotlight.core.errors import SizeError
from spotlight.core.types import Prompt, Size

HEADS = 12
CHANNELS = 3


@dataclass(frozen=True, kw_only=True)
class PixelSpec:
    """Everything that differs between the tiny families."""

    family: str
    size: Size
    patch: int
    layers: int
    head_dim: int
    rope_axes: tuple[int, int, int]
    text: TextTable

    def build(self) -> QwenImageTransformer2DModel:
        """Build a transformer with random weights."""
        return QwenImageTransformer2DModel(
            patch_size=self.patch,
            in_channels=CHANNELS * self.patch**2,
            out_channels=CHANNELS,
            num_layers=self.layers,
            attention_head_dim=self.head_dim,
            num_attention_heads=HEADS,
            joint_attention_dim=self.text.dimension,
            axes_dims_rope=self.rope_axes,
        )


class PixelAdapter:
    """The adapter protocol over a PixelSpec."""

    heads = HEADS
    lora_targets: Sequence[str] = LORA_TARGETS

    def __init__(self, spec: PixelSpec, transformer: QwenImageTransformer2DModel) -> None:
        self.spec = spec
        self.family = spec.family
        self.transformer: torch.nn.Module = transformer
        self.fast: FastModel | None = None
        """Set when the transformer was made fast (`compute/fast`)."""

    @property
    def device(self) -> torch.device:
        return next(self.transformer.parameters()).device

    @property
    def native_size(self) -> Size:
        return self.spec.size

    def encode(self, prompts: Sequence[Prompt]) -> list[Conditioning]:
        return [self.spec.text.encode(prompt) for prompt in prompts]

    def unconditional(self) -> Conditioning:
        return self.spec.text.null()

    def collate(self, conditionings: Sequence[Conditioning], width: int | None = None) -> ConditionBatch:
        """Pad to the only bucket, the table's width, whatever `width` is."""
        table = self.spec.text
        embeds_BTD = torch.zeros(len(conditionings), table.width, table.dimension)
        mask_BT = torch.zeros(len(conditionings), table.width, dtype=torch.bool)
        for row, conditioning in enumerate(conditionings):
            length = conditioning.embeds.shape[0]
            embeds_BTD[row, :length] = conditioning.embeds
            mask_BT[row, :length] = True
        return ConditionBatch(embeds_BTD, mask_BT).to(self.device)

    def latent_shape(self, size: Size) -> tuple[int, int]:
        rows, columns = self._grid(size)
        return rows * columns, CHANNELS * self.spec.patch**2

    def schedule(self, size: Size, steps: int) -> Tensor:
        return schedules.linear(steps)

    def velocity(
        self,
        x_BSC: Tensor,
        sigma_B: Tensor,
        cond: ConditionBatch,
        uncond: ConditionBatch | None,
        guidance: float,
        size: Size,
    ) -> Tensor:
        sigma = sigma_B.reshape(-1, 1, 1)
        v_cond = (x_BSC - self.predict(x_BSC, sigma_B, cond, size)) / sigma
        if uncond is None:
            return v_cond
        v_uncond = (x_BSC - self.predict(x_BSC, sigma_B, uncond, size)) / sigma
        return true_cfg(v_cond, v_uncond, guidance)

    def predict(self, x_BSC: Tensor, sigma_B: Tensor, cond: ConditionBatch, size: Size) -> Tensor:
        """Predict the clean image x0_BSC from x."""
        grid = self._grid(size)
        if self.fast is None:
            return self._forward(grid, x_BSC, sigma_B, cond.embeds, cond.mask)
        return self.fast.run(grid, partial(self._forward, grid), [x_BSC, sigma_B, cond.embeds, cond.mask])

    def _forward(
        self, grid: tuple[int, int], x_BSC: Tensor, sigma_B: Tensor, embeds_BTD: Tensor, mask_BT: Tensor
    ) -> Tensor:
        output: Tensor = self.transformer(
            hidden_states=x_BSC,
            encoder_hidden_states=embeds_BTD,
            timestep=sigma_B,
            img_shapes=[[(1, *grid)]] * x_BSC.shape[0],
            return_dict=False,
            **text_mask(self.fast, mask_BT, is_needed=True),
        )[0]
        return output.to(x_BSC.dtype)

    def encode_images(self, images_BHWC: Tensor) -> Tensor:
        """Convert uint8 images to latents x_BSC in -1..1."""
        pixels = images_BHWC.permute(0, 3, 1, 2).float() / 127.5 - 1.0
        return patchify(pixels, self.spec.patch)

    def decode(self, x0_BSC: Tensor, size: Size) -> Tensor:
        pixels = unpatchify(x0_BSC.float(), self.spec.patch, CHANNELS, size.height, size.width)
        return (pixels / 2.0 + 0.5).clamp(0.0, 1.0)

    def _grid(self, size: Size) -> tuple[int, int]:
        if size != self.spec.size:
            raise SizeError(
                f"{self.family} was pretrained at {self.spec.size} only, not at {size}; set the size to "
                f"{self.spec.size}."
            )
        return size.height // self.spec.patch, size.width // self.spec.patch
