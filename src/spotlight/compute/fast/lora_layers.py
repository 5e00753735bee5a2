"""Adapters computed in the type of the base weights.

peft multiplies fp32 adapters in fp32, which costs a rollout of Qwen-Image at 512x512 half of its speed (388 ms instead
of 277 ms per forward of 8 rows on an H200, rank 64). Here adapters stay fp32 and are rounded where they are multiplied,
in rollouts and in training alike; gradients and optimizer are fp32. The second product adds to the base's output in the
kernel itself.
"""

import torch
from peft.tuners.lora import Linear as PeftLinear
from torch import Tensor, nn
from torch.nn import functional as F

from spotlight.compute.train.lora import ADAPTER


class RoundedLora(PeftLinear):  # type: ignore[misc]
    """A linear layer of peft with one adapter and the same parameters under the same names."""

    def forward(self, x: Tensor) -> Tensor:
        base: Tensor = self.base_layer(x)
        down = self.lora_A[ADAPTER].weight.to(x.dtype)
        up = self.lora_B[ADAPTER].weight * self.scaling[ADAPTER]
        low_rank = F.linear(x, down).flatten(0, -2)
        return torch.addmm(base.flatten(0, -2), low_rank, up.to(x.dtype).t()).view(base.shape)


def round_adapters(transformer: nn.Module) -> None:
    """Convert all adapted linear layers in place; parameters and names stay."""
    for module in transformer.modules():
        if type(module) is PeftLinear:
            module.__class__ = RoundedLora
