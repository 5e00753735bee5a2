"""Guidance and LoRA layers, shared by every family on Qwen-Image's transformer."""

from torch import Tensor

from spotlight.compute.models.family_registry import QWEN_IMAGE

LORA_TARGETS = QWEN_IMAGE.lora_targets


def true_cfg(v_cond_BSC: Tensor, v_uncond_BSC: Tensor, scale: float) -> Tensor:
    """Combine both velocities, then rescale each token to the norm of its conditional velocity.

    Gradients flow through both branches and both norms.
    """
    combined = v_uncond_BSC + scale * (v_cond_BSC - v_uncond_BSC)
    return combined * (v_cond_BSC.norm(dim=-1, keepdim=True) / combined.norm(dim=-1, keepdim=True))
