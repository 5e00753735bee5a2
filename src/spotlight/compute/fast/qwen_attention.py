"""Qwen-Image's joint attention in real arithmetic, for a compiler.

diffusers rotates queries and keys as complex numbers, which torch's compiler does not fuse. Here the table of positions
is two real tables, and normalisation, rotation and concatenation become one kernel. Text masks come as `text_keep`, an
attention argument, because the transformer's own mask argument copies a number from the host in every forward, which a
CUDA graph cannot hold.

Invariant: without compilation the output is diffusers' own but for rounding (tests/unit/test_fast_blocks.py).
"""

from typing import Any

import torch
from torch import Tensor, nn

from spotlight.compute.fast.attention import AttentionKernel, attend


def real_tables(module: nn.Module, inputs: Any, freqs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Forward hook of the table of positions: cosines and signed sines of each token, S x 2 x D instead of S x D/2."""
    return tuple(_real(table) for table in freqs)


def _real(table_SD: Tensor) -> Tensor:
    cos, sin = table_SD.real, table_SD.imag
    pairs = torch.stack([cos, cos], dim=-1), torch.stack([-sin, sin], dim=-1)
    return torch.stack([pair.flatten(-2) for pair in pairs], dim=1)


def rotated(x_BSHD: Tensor, table_S2D: Tensor) -> Tensor:
    """Rotate neighbouring channels as one complex number each; computed in float32."""
    x = x_BSHD.float()
    swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    cos_S1D, sin_S1D = table_S2D[:, 0].unsqueeze(1), table_S2D[:, 1].unsqueeze(1)
    return (x * cos_S1D + swapped * sin_S1D).type_as(x_BSHD)


class RealJointAttention:
    """The stock double-stream processor, step by step, in real arithmetic."""

    _attention_backend = None
    _parallel_config = None

    def __init__(self, kernel: AttentionKernel) -> None:
        self.kernel = kernel

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: tuple[Tensor, Tensor] | None = None,
        text_keep: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        assert image_rotary_emb is not None
        image_table, text_table = image_rotary_emb
        text = encoder_hidden_states.shape[1]
        width = attn.inner_dim // attn.heads
        q, k, v = (project(hidden_states).unflatten(-1, (-1, width)) for project in (attn.to_q, attn.to_k, attn.to_v))
        text_q, text_k, text_v = (
            project(encoder_hidden_states).unflatten(-1, (-1, width))
            for project in (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj)
        )
        q, k = rotated(attn.norm_q(q), image_table), rotated(attn.norm_k(k), image_table)
        text_q = rotated(attn.norm_added_q(text_q), text_table)
        text_k = rotated(attn.norm_added_k(text_k), text_table)
        keep_BS, padding_B = None, hidden_states.new_zeros(len(q))
        if text_keep is not None:
            zeroed = text_keep[..., None, None].to(text_k.dtype)
            text_k, text_v = text_k * zeroed, text_v * zeroed
            padding_B = (~text_keep).sum(dim=1)
            keep_BS = torch.cat([text_keep, text_keep.new_ones((len(q), q.shape[1]))], dim=1)
        joint = attend(
            self.kernel,
            torch.cat([text_q, q], dim=1),
            torch.cat([text_k, k], dim=1),
            torch.cat([text_v, v], dim=1),
            keep_BS,
            padding_B,
        ).flatten(2, 3)
        image_out = attn.to_out[0](joint[:, text:].contiguous())
        return image_out, attn.to_add_out(joint[:, :text].contiguous())
