"""Files of an export: a LoRA in two layouts, a whole transformer in diffusers layout, or a weights file.

A whole transformer has the files, names and, where adapters are merged, the types of its base; one file of it is in
memory at a time. Weights that a run trained whole stay in fp32.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from spotlight.compute.export.adapters import Adapters, by_module
from spotlight.compute.export.lora_layouts import comfyui_layout, diffusers_layout
from spotlight.compute.export.trained import TrainedSet
from spotlight.compute.models.family_registry import Family
from spotlight.compute.models.folder_facts import weight_files
from spotlight.compute.models.results import read
from spotlight.compute.weights import files
from spotlight.core.errors import WeightsError

DIFFUSERS_LORA = "pytorch_lora_weights.safetensors"
"""The name that `load_lora_weights` looks for in a folder."""
COMFYUI_LORA = "comfyui_lora.safetensors"
WEIGHTS_FILE = "weights.safetensors"


def write_lora(trained: TrainedSet, family: Family, folder: Path) -> None:
    """Write both LoRA files."""
    adapters = _adapters(trained, family, trained.base_folder())
    for name, (tensors, metadata) in (
        (DIFFUSERS_LORA, diffusers_layout(adapters)),
        (COMFYUI_LORA, comfyui_layout(adapters, family.name)),
    ):
        save_file(tensors, folder / name, metadata=metadata)


def write_transformer(trained: TrainedSet, family: Family, folder: Path) -> None:
    """Write `transformer/` with the trained weights, adapters merged."""
    base = trained.base_folder()
    if trained.lora is None:
        _rewrite(base / "transformer", folder / "transformer", trained.tensors, replace=True)
        return
    adapters = _adapters(trained, family, base)
    changes = {
        # The order of peft's own merge, so that both give the same bits.
        f"{module}.weight": (change.up_OR @ change.down_RI) * adapters.scale
        for module, change in adapters.modules.items()
    }
    _rewrite(base / "transformer", folder / "transformer", changes, replace=False)


def copy_components(trained: TrainedSet, family: Family, folder: Path) -> None:
    """Copy model_index.json and every component but the transformer, so that the folder is a whole model."""
    base = trained.base_folder()
    for component in family.components:
        if component != "transformer":
            shutil.copytree(base / component, folder / component)
    shutil.copy(base / "model_index.json", folder)


def write_weights_file(trained: TrainedSet, folder: Path) -> None:
    """Write the whole weights of a tiny family, which `--model.name` and `spotlight evaluate` take."""
    content = read(trained.source)
    files.write(folder / WEIGHTS_FILE, content.family, content.weights)


def _adapters(trained: TrainedSet, family: Family, base: Path) -> Adapters:
    assert trained.lora is not None
    config = json.loads((base / "transformer" / "config.json").read_text())
    model: Any = getattr(diffusers, family.transformer)
    # Only names and shapes are needed.
    with torch.device("meta"):
        transformer = model.from_config(config)
    return by_module(trained.tensors, trained.lora, transformer, family.lora_targets)


def _rewrite(source: Path, target: Path, trained: Mapping[str, Tensor], *, replace: bool) -> None:
    """Copy a component's files with these tensors in place of its own, or added to them."""
    target.mkdir()
    weights = weight_files(source)
    unused, size = dict(trained), 0
    for path in weights:
        tensors = {}
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                tensor = file.get_tensor(name)
                change = unused.pop(name, None)
                if change is not None:
                    tensor = change if replace else (tensor.float() + change).to(tensor.dtype)
                tensors[name] = tensor.contiguous()
        size += sum(tensor.nbytes for tensor in tensors.values())
        save_file(tensors, target / path.name, metadata={"format": "pt"})
    if unused:
        raise WeightsError(
            f"{len(unused)} trained tensors are not in the base model {source} (first: {min(unused)}), so the export "
            "would lose them; restore the model that the run trained from."
        )
    for settings in source.glob("*.json"):
        content = json.loads(settings.read_text())
        if "weight_map" in content:
            content["metadata"] = {"total_size": size}
        (target / settings.name).write_text(json.dumps(content, indent=2) + "\n")
