"""Linear layers that previews compute in fp8: weights and inputs rounded to e4m3 with a scale per row.

A preview only ranks a seed. Each weight has a second copy in fp8 (a quarter of the memory of fp32, half of bf16), made
once from the frozen base weights; adapters stay beside it. On a GPU the products of a model in bf16 run on the fp8
tensor cores. Elsewhere the rounded numbers are multiplied in the layer's own type, which ranks alike and saves no time.

Co-simulations, whose tiny models train all of their weights, round these anew for each batch of previews (`rounding`).

Invariant: outside of a preview a layer computes with its exact weight, bit for bit (tests/unit/test_fp8.py).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
LEAST = 1e-12
"""Least scale, so that a row of zeros stays finite."""
MULTIPLE = 16
"""Both sides of a weight must be multiples of this for the tensor cores."""


@dataclass
class PreviewSwitch:
    """Shared by the layers of one model: whether the forward that runs is a preview in fp8."""

    previews: bool = False


class PreviewLinear(nn.Linear):
    """A linear layer with a second weight in fp8; parameters and names stay."""

    weight8_OI: Tensor
    scale8_O: Tensor
    precision: PreviewSwitch

    def forward(self, x: Tensor) -> Tensor:
        if not self.precision.previews:
            return F.linear(x, self.weight, self.bias)
        rows = x.flatten(0, -2)
        rows8, scale_R1 = _rounded(rows)
        if x.is_cuda and x.dtype == torch.bfloat16:
            out = torch._scaled_mm(
                rows8,
                self.weight8_OI.t(),
                scale_a=scale_R1,
                scale_b=self.scale8_O.view(1, -1),
                bias=None if self.bias is None else self.bias.to(x.dtype),
                out_dtype=x.dtype,
                use_fast_accum=True,
            )
        else:
            weight = self.weight8_OI.to(x.dtype) * self.scale8_O.to(x.dtype).view(-1, 1)
            out = F.linear(rows8.to(x.dtype) * scale_R1.to(x.dtype), weight, self.bias)
        return out.unflatten(0, x.shape[:-1])


def _rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows in fp8 and their scales, R x 1 in float32."""
    scale = rows.abs().amax(dim=1, keepdim=True).float().clamp(min=LEAST) / LARGEST
    return (rows.float() / scale).to(FP8), scale


def _as_rounded(x: Tensor) -> Tensor:
    """The numbers that fp8 has for these rows, in their own type."""
    rows8, scale_R1 = _rounded(x.flatten(0, -2))
    return (rows8.to(x.dtype) * scale_R1.to(x.dtype)).unflatten(0, x.shape[:-1])


def _round_inputs(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(map(_as_rounded, inputs))


@contextmanager
def rounding(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Inside, all linear layers of these blocks compute with numbers of fp8: their present weights and their inputs."""
    layers = [module for block in blocks for module in block.modules() if isinstance(module, nn.Linear)]
    kept = [layer.weight.data for layer in layers]
    hooks = [layer.register_forward_pre_hook(_round_inputs) for layer in layers]
    try:
        for layer, weight in zip(layers, kept, strict=True):
            layer.weight.data = _as_rounded(weight)
        yield
    finally:
        for layer, weight, hook in zip(layers, kept, hooks, strict=True):
            layer.weight.data = weight
            hook.remove()


@torch.no_grad()
def add_fp8(blocks: list[nn.Module], precision: PreviewSwitch) -> int:
    """Give every frozen linear layer of these blocks a weight in fp8; return the bytes that these take."""
    taken = 0
    for block in blocks:
        for module in block.modules():
            if (
                type(module) is not nn.Linear
                or module.weight.requires_grad
                or any(s % MULTIPLE for s in module.weight.shape)
            ):
                continue
            weight8, scale = _rounded(module.weight.detach())
            module.__class__ = PreviewLinear
            # Plain attributes: they are neither parameters nor part of the module's state.
            object.__setattr__(module, "weight8_OI", weight8)
            object.__setattr__(module, "scale8_O", scale.flatten())
            object.__setattr__(module, "precision", precision)
            taken += weight8.nbytes + scale.nbytes
    return taken
