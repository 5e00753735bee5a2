"""The adapter protocol: all that differs between model families.

Rollout, log-prob recomputation, training and reference share `velocity`; samplers, losses and rewards do not depend on
the family. Shapes: B batch, T text tokens, D text width, S image tokens, C channels per token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spotlight.core.types import Prompt, Size


@dataclass(frozen=True)
class Conditioning:
    """The text side of one prompt, unpadded, on the host: embeds_TD and, where a family has one, a pooled vector."""

    embeds: Tensor
    pooled: Tensor | None = None


@dataclass(frozen=True)
class ConditionBatch:
    """Conditionings padded to one bucket width; the mask is never None, so kernels do not change with padding."""

    embeds: Tensor
    mask: Tensor
    pooled: Tensor | None = None

    def to(self, device: torch.device | str) -> "ConditionBatch":
        pooled = None if self.pooled is None else self.pooled.to(device)
        return ConditionBatch(self.embeds.to(device), self.mask.to(device), pooled)

    def rows(self, index: Tensor | slice) -> "ConditionBatch":
        pooled = None if self.pooled is None else self.pooled[index]
        return ConditionBatch(self.embeds[index], self.mask[index], pooled)

    def widened(self, width: int) -> "ConditionBatch":
        """Pad the text to `width`."""
        extra = width - self.mask.shape[1]
        if not extra:
            return self
        return ConditionBatch(F.pad(self.embeds, (0, 0, 0, extra)), F.pad(self.mask, (0, extra)), self.pooled)


def of_one_width(cond: ConditionBatch, uncond: ConditionBatch) -> tuple[ConditionBatch, ConditionBatch]:
    """Pad both to the wider one, so that both halves of a guided velocity have one shape."""
    width = max(cond.mask.shape[1], uncond.mask.shape[1])
    return cond.widened(width), uncond.widened(width)


def joined_conditions(batches: Sequence[ConditionBatch]) -> ConditionBatch:
    """Concatenate batches of one width along the rows."""
    pooled = [batch.pooled for batch in batches if batch.pooled is not None]
    return ConditionBatch(
        torch.cat([batch.embeds for batch in batches]),
        torch.cat([batch.mask for batch in batches]),
        torch.cat(pooled) if pooled else None,
    )


class Adapter(Protocol):
    """One model family, loaded on one device."""

    family: str
    transformer: nn.Module
    heads: int
    lora_targets: Sequence[str]

    @property
    def device(self) -> torch.device: ...

    def encode(self, prompts: Sequence[Prompt]) -> list[Conditioning]:
        """Encode prompts one at a time, so that a neighbour in the batch cannot change the result."""

    def unconditional(self) -> Conditioning:
        """Conditioning of the negative prompt, for guidance."""

    def collate(self, conditionings: Sequence[Conditioning], width: int | None = None) -> ConditionBatch:
        """Pad to `width`, or to the smallest bucket that holds all of them, on the model's device."""

    def latent_shape(self, size: Size) -> tuple[int, int]:
        """(S, C) of one image; raises SizeError if the family cannot make that size."""

    def schedule(self, size: Size, steps: int) -> Tensor:
        """sigmas[steps + 1] from 1 to 0, fp32 on the host; a pure function."""

    def velocity(
        self,
        x_BSC: Tensor,
        sigma_B: Tensor,
        cond: ConditionBatch,
        uncond: ConditionBatch | None,
        guidance: float,
        size: Size,
    ) -> Tensor:
        """v_BSC in fp32, guided when `uncond` is given; sigma may differ from row to row.

        A model with embedded guidance (FLUX.1-dev) takes `guidance` as an input and ignores `uncond`.
        """

    def decode(self, x0_BSC: Tensor, size: Size) -> Tensor:
        """image_B3HW in 0..1."""
