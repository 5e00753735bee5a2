"""One LoRA in the key layouts of diffusers and of ComfyUI, as tensors and metadata of a safetensors file.

**diffusers** (`pipeline.load_lora_weights`, loaders/peft.py of 0.42). A module of the transformer has the keys
`transformer.MODULE.lora_A.weight` and `.lora_B.weight`. Metadata key `lora_adapter_metadata` holds peft's settings as
JSON, each under `transformer.`; without it the strength is alpha / rank = 1. A scale that is a power of two is
multiplied into `lora_B`, which changes no bit of the product, so that programs that ignore the metadata apply the right
strength. Any other scale is in the metadata only, because the product would round.

**ComfyUI** (Comfy-Org/ComfyUI: comfy/lora.py at ec93dca, comfy/utils.py at 09708ea, comfy/weight_adapter/lora.py at
6f98b15). A weight `diffusion_model.PLACE.weight` of its own model takes `diffusion_model.PLACE.lora_down.weight`,
`.lora_up.weight` and `.alpha`, and changes by alpha / (rows of lora_down) * lora_up @ lora_down. PLACE is a name in
ComfyUI's model:

    qwen-image   the module names of diffusers
    sd3          joint_blocks.N.x_block (image) and .context_block (text); q, k, v are one weight
    flux         double_blocks.N.img_* and .txt_*; q, k, v are one weight. In single blocks they are the first rows of
                 `linear1`, which has the name `linear1_qkv` for this purpose.

Names of diffusers under `diffusion_model.` match in qwen-image only; the other two accept them under `transformer.`.
Three adapters of one fused weight become one of three times the rank: the down matrices stacked, the up matrices
on the diagonal, and alpha three times as large, since ComfyUI divides by the larger rank.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spotlight.compute.export.adapters import Adapters, LowRank
from spotlight.compute.models.family_registry import FLUX, QWEN_IMAGE, SD3
from spotlight.core.errors import WeightsError


@dataclass(frozen=True)
class Blocks:
    """ComfyUI's name of a list of blocks, and the diffusers modules that each place in a block holds, in row order."""

    name: str
    places: Mapping[str, tuple[str, ...]]


IMAGE_QKV = ("attn.to_q", "attn.to_k", "attn.to_v")
TEXT_QKV = ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj")
COMFYUI: dict[str, dict[str, Blocks]] = {
    QWEN_IMAGE.name: {},
    SD3.name: {
        "transformer_blocks": Blocks(
            "joint_blocks",
            {
                "x_block.attn.qkv": IMAGE_QKV,
                "x_block.attn.proj": ("attn.to_out.0",),
                "context_block.attn.qkv": TEXT_QKV,
                "context_block.attn.proj": ("attn.to_add_out",),
            },
        ),
    },
    FLUX.name: {
        "transformer_blocks": Blocks(
            "double_blocks",
            {
                "img_attn.qkv": IMAGE_QKV,
                "img_attn.proj": ("attn.to_out.0",),
                "img_mlp.0": ("ff.net.0.proj",),
                "img_mlp.2": ("ff.net.2",),
                "txt_attn.qkv": TEXT_QKV,
                "txt_attn.proj": ("attn.to_add_out",),
                "txt_mlp.0": ("ff_context.net.0.proj",),
                "txt_mlp.2": ("ff_context.net.2",),
            },
        ),
        "single_transformer_blocks": Blocks("single_blocks", {"linear1_qkv": IMAGE_QKV}),
    },
}
"""Renamed blocks by family and diffusers' name of the list; empty: all names are those of diffusers."""


def diffusers_layout(adapters: Adapters) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata for `load_lora_weights` of the family's pipeline."""
    is_exact = math.frexp(adapters.scale)[0] == 0.5
    tensors = {}
    for module, change in adapters.modules.items():
        tensors[f"transformer.{module}.lora_A.weight"] = change.down_RI
        tensors[f"transformer.{module}.lora_B.weight"] = change.up_OR * adapters.scale if is_exact else change.up_OR
    settings = {
        "r": adapters.rank,
        "lora_alpha": float(adapters.rank) if is_exact else adapters.alpha,
        "target_modules": sorted(adapters.modules),
    }
    described = json.dumps({f"transformer.{key}": value for key, value in settings.items()})
    return tensors, {"format": "pt", "lora_adapter_metadata": described}


def comfyui_layout(adapters: Adapters, family: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata for ComfyUI's LoRA loader."""
    tensors = {}
    for place, modules in _places(adapters, COMFYUI[family]).items():
        parts = [adapters.modules[module] for module in modules]
        joined = parts[0] if len(parts) == 1 else _joined(parts)
        tensors[f"diffusion_model.{place}.lora_down.weight"] = joined.down_RI
        tensors[f"diffusion_model.{place}.lora_up.weight"] = joined.up_OR
        tensors[f"diffusion_model.{place}.alpha"] = torch.tensor(adapters.alpha * len(parts))
    return tensors, {"format": "pt"}


def _places(adapters: Adapters, renamed: Mapping[str, Blocks]) -> dict[str, tuple[str, ...]]:
    """Modules by their place in ComfyUI's model; raises WeightsError unless every module has one, complete."""
    if not renamed:
        return {module: (module,) for module in adapters.modules}
    places: dict[str, tuple[str, ...]] = {}
    for module in adapters.modules:
        listed, _, rest = module.partition(".")
        number, _, inner = rest.partition(".")
        blocks = renamed.get(listed, Blocks("", {}))
        place = next((place for place, held in blocks.places.items() if inner in held), None)
        if place is None:
            raise WeightsError(
                f"the adapter of {module} has no place in ComfyUI's model, because its module is not among those that "
                "can be renamed; export it with a version of Spotlight that knows the module."
            )
        held = tuple(f"{listed}.{number}.{part}" for part in blocks.places[place])
        absent = [other for other in held if other not in adapters.modules]
        if absent:
            raise WeightsError(
                f"ComfyUI's {place} joins {', '.join(held)}, but {', '.join(absent)} has no adapter; export adapters "
                "of all of them."
            )
        places[f"{blocks.name}.{number}.{place}"] = held
    return places


def _joined(parts: Sequence[LowRank]) -> LowRank:
    """One change of the stacked weights."""
    return LowRank(torch.cat([part.down_RI for part in parts]), torch.block_diag(*(part.up_OR for part in parts)))
