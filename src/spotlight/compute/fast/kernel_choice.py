"""Measures which attention kernel is fastest for a run's rows, forward and backward, before the first sample."""

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from spotlight.compute.fast.attention import AttentionKernel, attend
from spotlight.core.errors import EnvironmentProblem

HALF = (torch.bfloat16, torch.float16)
REPEATS = 3


def usable_kernels(device: torch.device, dtype: torch.dtype, excluded: Sequence[str] = ()) -> list[AttentionKernel]:
    """Kernels for this device and precision, without those that a family excludes."""
    kernels = [AttentionKernel.MASKED]
    if device.type == "cuda" and dtype in HALF:
        kernels += [AttentionKernel.FLASH, AttentionKernel.CUDNN]
    return [kernel for kernel in kernels if kernel not in excluded]


def fastest_kernel(
    kernels: Sequence[AttentionKernel], rows: int, tokens: int, padding: int, transformer: nn.Module
) -> AttentionKernel:
    """The fastest of these for forward and backward of this transformer's heads; a kernel that fails is not used."""
    if len(kernels) == 1:
        return kernels[0]
    with torch.enable_grad():
        seconds = {kernel: _seconds(kernel, rows, tokens, padding, transformer) for kernel in kernels}
    best = min(kernels, key=lambda kernel: seconds[kernel])
    if math.isinf(seconds[best]):
        raise EnvironmentProblem(
            f"none of the attention kernels {', '.join(kernels)} computes {rows} rows of {tokens} tokens on "
            f"{next(transformer.parameters()).device}; set model.compile to false."
        )
    return best


def _seconds(kernel: AttentionKernel, rows: int, tokens: int, padding: int, transformer: nn.Module) -> float:
    parameter = next(transformer.parameters())
    config: Any = transformer.config
    shape = (rows, tokens, int(config.num_attention_heads), int(config.attention_head_dim))
    q, k, v = (torch.randn(shape, device=parameter.device, dtype=parameter.dtype).requires_grad_() for _ in range(3))
    keep_BS = None
    if padding:
        keep_BS = torch.ones(rows, tokens, dtype=torch.bool, device=parameter.device)
        keep_BS[:, :padding] = False
    padding_B = torch.full((rows,), padding, device=parameter.device)

    def run() -> None:
        attend(kernel, q, k, v, keep_BS, padding_B).sum().backward()

    best = float("inf")
    try:
        for _ in range(1 + REPEATS):
            began = time.perf_counter()
            run()
            if parameter.is_cuda:
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - began)
    except RuntimeError:
        return float("inf")
    return best
