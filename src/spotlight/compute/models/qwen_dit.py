"""Guidance, masks and LoRA layers, shared by every family on Qwen-Image's transformer."""

from typing import Any

from torch import Tensor

from spotlight.compute.fast.fast_model import FastModel
from spotlight.compute.models.family_registry import QWEN_IMAGE

LORA_TARGETS = QWEN_IMAGE.lora_targets


def true_cfg(v_cond_BSC: Tensor, v_uncond_BSC: Tensor, scale: float) -> Tensor:
    """Combine both velocities, then rescale each token to the norm of its conditional velocity.

    Gradients flow through both branches and both norms.
    """
    combined = v_uncond_BSC + scale * (v_cond_BSC - v_uncond_BSC)
    return combined * (v_cond_BSC.norm(dim=-1, keepdim=True) / combined.norm(dim=-1, keepdim=True))


def text_mask(fast: FastModel | None, mask_BT: Tensor, is_needed: bool) -> dict[str, Any]:
    """The argument that masks padded text: diffusers' own, or that of the fast attention."""
    if fast is not None:
        return {"attention_kwargs": {"text_keep": mask_BT}}
    return {"encoder_hidden_states_mask": mask_BT if is_needed or not bool(mask_BT.all()) else None}
