"""Qwen-Image's true classifier-free guidance: combine, then give each token the norm of its conditional velocity."""

from torch import Tensor


def true_cfg(v_cond_BSC: Tensor, v_uncond_BSC: Tensor, scale: float) -> Tensor:
    """Gradients flow through both branches and both norms."""
    combined = v_uncond_BSC + scale * (v_cond_BSC - v_uncond_BSC)
    return combined * (v_cond_BSC.norm(dim=-1, keepdim=True) / combined.norm(dim=-1, keepdim=True))
