"""Guidance and LoRA layers, shared by every family on Qwen-Image's transformer."""

from torch import Tensor

LORA_TARGETS = (
    *("to_q", "to_k", "to_v", "to_out.0"),
    *("add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"),
    *("img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2"),
)


def true_cfg(v_cond_BSC: Tensor, v_uncond_BSC: Tensor, scale: float) -> Tensor:
    """Combine both velocities, then rescale each token to the norm of its conditional velocity.

    Gradients flow through both branches and both norms.
    """
    combined = v_uncond_BSC + scale * (v_cond_BSC - v_uncond_BSC)
    return combined * (v_cond_BSC.norm(dim=-1, keepdim=True) / combined.norm(dim=-1, keepdim=True))
