"""Facts of a checkpoint in diffusers layout, from its JSON files and safetensors headers; free of torch.

A digest covers every file of a component: settings and tokenizers whole, weights by their header and a block of each
tensor. Reading 40 GB would take minutes, and training changes every tensor that it changes at all.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from spotlight.compute.models.blocks import DecoderShape, TransformerShape
from spotlight.compute.models.family_registry import Family, Geometry, family_of_class
from spotlight.compute.weights.header import unreadable
from spotlight.core.errors import WeightsError

WEIGHTS = ".safetensors"
SETTINGS = (".json", ".txt", ".model", ".jinja")
"""Suffixes of settings and tokenizers."""
STEMS = ("diffusion_pytorch_model", "model")
"""Names of weights files in diffusers and in transformers; other stems are variants such as fp16."""
DIGEST_BLOCK = 4096
"""Bytes of each tensor that its digest covers, from the middle of the tensor."""
BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "U8": 1, "BOOL": 1}


@dataclass(frozen=True)
class ComponentFacts:
    """Size of one component's weights."""

    parameters: int
    bytes: int
    """Bytes on disk, in the stored dtypes."""


@dataclass(frozen=True, kw_only=True)
class FolderFacts:
    """Facts of one checkpoint before it is loaded."""

    family: Family
    geometry: Geometry
    heads: int
    shape: TransformerShape
    decoder: DecoderShape
    embeds_guidance: bool
    """Whether the transformer takes the guidance as an input."""
    components: Mapping[str, ComponentFacts]
    """Size of the transformer, the VAE and every text encoder."""
    lora_edges: int
    """Rows and columns of all matrices that adapters change: adapters of rank r have r times this many parameters."""
    digest: str
    """Identity of the whole checkpoint."""
    text_digest: str
    """Identity of its tokenizers and text encoders."""


def class_in_folder(folder: Path) -> str | None:
    """Pipeline class in model_index.json, else the transformer's class; None if neither is readable."""
    index, config = folder / "model_index.json", folder / "transformer" / "config.json"
    try:
        return str(json.loads((index if index.is_file() else config).read_text())["_class_name"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def family_in_folder(folder: Path) -> Family:
    """The family of a folder; raises WeightsError if it has no class name or a class without an adapter."""
    name = class_in_folder(folder)
    if name is None:
        raise WeightsError(
            f"The folder '{folder}' is no model in diffusers layout, because neither model_index.json nor "
            "transformer/config.json has a readable class name; fetch the whole model."
        )
    return family_of_class(name, str(folder))


def read_folder(folder: Path) -> FolderFacts:
    """Read the facts; raises WeightsError if a component is missing or unreadable, or the family is unknown."""
    family = family_in_folder(folder)
    for component in family.components:
        if not (folder / component).is_dir():
            raise WeightsError(
                f"The model in '{folder}' has no '{component}', because that folder is missing; fetch the whole "
                "model, in diffusers layout."
            )
    transformer = _settings(folder / "transformer" / "config.json")
    tensors = {
        component: _tensors(folder / component)
        for component in ("transformer", "vae", *(part for part in family.text if part.startswith("text_encoder")))
    }
    vae = _settings(folder / "vae" / "config.json")
    return FolderFacts(
        family=family,
        geometry=family.geometry(transformer, vae),
        heads=int(transformer["num_attention_heads"]),
        shape=TransformerShape.of(family.blocks, transformer),
        decoder=DecoderShape.of(vae),
        embeds_guidance=bool(transformer.get("guidance_embeds")),
        components={component: _size(found) for component, found in tensors.items()},
        lora_edges=sum(
            sum(shape)
            for name, (_, shape) in tensors["transformer"].items()
            if any(name.endswith(f".{target}.weight") for target in family.lora_targets)
        ),
        digest=_digest(folder, family.components),
        text_digest=_digest(folder, tuple(family.text)),
    )


def _digest(folder: Path, components: Sequence[str]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for component in sorted(components):
        paths = sorted(path for path in (folder / component).iterdir() if path.is_file() and path.name[0] != ".")
        weights = weight_files(folder / component) if any(path.suffix == WEIGHTS for path in paths) else []
        for path in [*(path for path in paths if path.suffix in SETTINGS), *weights]:
            content = _sampled(path) if path in weights else path.read_bytes()
            found.update(f"{component}/{path.name} {len(content)} ".encode() + content)
    return found.hexdigest()


def _sampled(path: Path) -> bytes:
    """Header of a safetensors file and a block from the middle of each tensor."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = file.read(size)
        parts = [header]
        for name, entry in sorted(json.loads(header).items()):
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            file.seek(8 + size + begin + max(0, (end - begin - DIGEST_BLOCK) // 2))
            parts.append(file.read(min(DIGEST_BLOCK, end - begin)))
    return b"".join(parts)


def _settings(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise WeightsError(
            f"The settings {path} cannot be read ({type(error).__name__}: {error}); fetch the model again."
        ) from error
    return found if isinstance(found, dict) else {}


def _tensors(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of every tensor of a component, by name."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="np") as file:
                for name in file.keys():  # noqa: SIM118
                    part = file.get_slice(name)
                    found[name] = (str(part.get_dtype()), tuple(part.get_shape()))
        except (SafetensorError, OSError) as error:
            raise unreadable(path, error) from error
    return found


def weight_files(folder: Path) -> list[Path]:
    """The files that loading reads: all shards of an index, or the single file."""
    for stem in STEMS:
        index = folder / f"{stem}.safetensors.index.json"
        if index.is_file():
            return [folder / name for name in sorted(set(_settings(index).get("weight_map", {}).values()))]
        if (folder / f"{stem}.safetensors").is_file():
            return [folder / f"{stem}.safetensors"]
    raise WeightsError(
        f"The folder '{folder}' has no safetensors weights, because neither {' nor '.join(STEMS)} is there; fetch the "
        "model again (pickled weights are never loaded)."
    )


def _size(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> ComponentFacts:
    counts = {name: math.prod(shape) for name, (_, shape) in tensors.items()}
    return ComponentFacts(sum(counts.values()), sum(n * BYTES.get(tensors[name][0], 4) for name, n in counts.items()))
