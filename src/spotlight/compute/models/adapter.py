"""The adapter protocol: all that differs between model families.

Rollout, log-prob recomputation, training and reference share `velocity`; samplers, losses and rewards do not depend on
the family. Shapes: B batch, T text tokens, D text width, S image tokens, C channels per token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

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

    def collate(self, conditionings: Sequence[Conditioning]) -> ConditionBatch:
        """Pad to the smallest bucket that holds all of them, on the model's device."""

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
        """v_BSC in fp32, guided when `uncond` is given; sigma may differ from row to row."""

    def decode(self, x0_BSC: Tensor, size: Size) -> Tensor:
        """image_B3HW in 0..1."""
