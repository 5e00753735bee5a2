"""Attention over image and padded text without a mask.

A mask costs cuDNN's attention 42 % of its speed on an H200 (370 instead of 642 TFLOP/s at 6,528 tokens). Instead, keys
and values of padding are zeros. A zero key has the logit 0 with every query, so n of them add exactly n to the sum Z
of exponentials, and a zero value adds nothing to the output:

    masked output = output * Z / (Z - n)        log-sum-exp without padding = log(Z - n)

The kernel's own backward, given these two, computes the gradients of masked attention: it restores each probability as
exp(logit - log-sum-exp), and padding adds nothing to the gradient of a query because its key is zero. Gradients of the
zeros are dropped where padding is set to zero.

Invariant: forward and backward are those of masked attention, except for rounding (tests/unit/test_fast_attention.py).
The correction Z / (Z - n) would lose precision only where padding has most of the probability; `Z - n` is at least
`LEAST_SHARE` of Z here, and anything less becomes NaN, which the run reports as divergence.

Shapes: B batch, S tokens, H heads, D head width.
"""

from enum import StrEnum
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten
LEAST_SHARE = 1e-3
"""Least share of the probability that lies outside of padding."""


class AttentionKernel(StrEnum):
    """An implementation of attention; rollouts and training of a run use the same."""

    MASKED = "masked"
    """Torch's choice, with a mask: any device and precision."""
    FLASH = "flash"
    """Torch's flash attention, half precision on a GPU."""
    CUDNN = "cudnn"
    """cuDNN's attention, half precision on a GPU."""
    CPU = "cpu"
    """Torch's flash attention on a CPU, to test the correction there."""


def attend(
    kernel: AttentionKernel, q_BSHD: Tensor, k_BSHD: Tensor, v_BSHD: Tensor, keep_BS: Tensor | None, padding_B: Tensor
) -> Tensor:
    """Attention that ignores the keys where `keep_BS` is False; their keys and values must be zeros.

    `padding_B` is the number of such keys in each row.
    """
    q, k, v = (part.transpose(1, 2) for part in (q_BSHD, k_BSHD, v_BSHD))
    if kernel is AttentionKernel.MASKED:
        mask = None if keep_BS is None else keep_BS[:, None, None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
    if keep_BS is None:
        return _forward(kernel, q, k, v)[0].transpose(1, 2)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        out: Tensor = _PaddedAttention.apply(q, k, v, padding_B, kernel)  # type: ignore[no-untyped-call]
        return out.transpose(1, 2)
    raw, log_sum, _ = _forward(kernel, q, k, v)
    return _corrected(raw, log_sum, padding_B)[0].transpose(1, 2)


class _PaddedAttention(torch.autograd.Function):
    """Forward and backward of one kernel with the correction between them."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, padding_B: Tensor, kernel: AttentionKernel) -> Tensor:
        raw, log_sum, seeds = _forward(kernel, q, k, v)
        out, log_rest = _corrected(raw, log_sum, padding_B)
        ctx.save_for_backward(q, k, v, out, log_rest, *seeds)
        ctx.kernel = kernel
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # type: ignore[override]
        q, k, v, out, log_rest, *seeds = ctx.saved_tensors
        dq, dk, dv = _backward(ctx.kernel, grad, (q, k, v), out, log_rest, seeds)
        return dq, dk, dv, None, None


def _corrected(raw_BHSD: Tensor, log_sum: Tensor, padding_B: Tensor) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp without padding; kernels differ in whether the latter has a last dimension of one."""
    batch, heads, tokens = raw_BHSD.shape[:3]
    log_BHS = log_sum.reshape(batch, heads, tokens)
    rest_BHS = 1.0 - padding_B.to(log_BHS.dtype).view(-1, 1, 1) * torch.exp(-log_BHS)
    rest_BHS = torch.where(rest_BHS >= LEAST_SHARE, rest_BHS, torch.full_like(rest_BHS, float("nan")))
    out = (raw_BHSD.to(log_BHS.dtype) / rest_BHS.unsqueeze(-1)).to(raw_BHSD.dtype)
    return out, (log_BHS + torch.log(rest_BHS)).view(log_sum.shape)


def _forward(kernel: AttentionKernel, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Output, log-sum-exp, and the random state that the backward takes, though nothing is dropped."""
    if kernel is AttentionKernel.CUDNN:
        out, log_sum, _, _, _, _, seed, offset, _ = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)
        return out, log_sum, (seed, offset)
    if kernel is AttentionKernel.FLASH:
        out, log_sum, _, _, _, _, seed, offset, _ = aten._scaled_dot_product_flash_attention(q, k, v)
        return out, log_sum, (seed, offset)
    out, log_sum = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    return out, log_sum, ()


def _backward(
    kernel: AttentionKernel,
    grad: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
    log_rest: Tensor,
    seeds: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = inputs
    tokens = q.shape[2]
    if kernel is AttentionKernel.CPU:
        found = aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, log_rest, 0.0, False)
    elif kernel is AttentionKernel.FLASH:
        found = aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, log_rest, None, None, tokens, tokens, 0.0, False, *seeds
        )
    else:
        found = _cudnn_backward(grad, q, k, v, out, log_rest, *seeds)
    dq, dk, dv = found
    return dq, dk, dv


@torch.library.custom_op("spotlight::cudnn_attention_backward", mutates_args=())
def _cudnn_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_rest: Tensor, seed: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """cuDNN's backward, opaque to the compiler.

    The compiler gives a last dimension of one any stride, 0 among them; cuDNN refuses all but 1.
    """
    tokens = q.shape[2]
    dq, dk, dv = aten._scaled_dot_product_cudnn_attention_backward(
        grad, q, k, v, out, with_dense_strides(log_rest), seed, offset, None, None, None, tokens, tokens, 0.0, False
    )
    return dq, dk, dv


@_cudnn_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, log_rest: Tensor, seed: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def with_dense_strides(x: Tensor) -> Tensor:
    """The same numbers with the strides of a new tensor, also in dimensions of one, which `contiguous` leaves alone."""
    dense = x.contiguous()
    return dense.as_strided(dense.shape, torch.empty(dense.shape, device="meta").stride())
