"""The shipped tiny families by name: their spec and their weights."""

from pathlib import Path

import torch

from spotlight.assets import asset
from spotlight.compute.data.worlds import World, world
from spotlight.compute.models.devices import usable_device
from spotlight.compute.models.pixels import PixelAdapter, PixelSpec
from spotlight.compute.models.scenes import SCENES
from spotlight.compute.models.words import WORDS, WORDS_LARGE
from spotlight.compute.weights import files
from spotlight.core.errors import InputError, WeightsError, suggestion

SPECS = {spec.family: spec for spec in (WORDS, WORDS_LARGE, SCENES)}


def spec_of(family: str) -> PixelSpec:
    if family not in SPECS:
        raise InputError(f"there is no model family '{family}': {suggestion(family, SPECS)}")
    return SPECS[family]


def world_of(adapter: PixelAdapter) -> World:
    return world(adapter.family)


def shipped_weights(family: str) -> Path:
    return asset(f"weights/{family}.safetensors")


def read_weights(name_or_path: str) -> files.WeightFile:
    """The verified weights of a shipped family by name, or of a weights file by path."""
    path = shipped_weights(name_or_path) if name_or_path in SPECS else Path(name_or_path)
    if not path.exists() and path.suffix != ".safetensors":
        raise InputError(
            f"'{name_or_path}' is neither a weights file nor a model family: {suggestion(name_or_path, SPECS)}"
        )
    return files.read(path)


def build(content: files.WeightFile, device: torch.device | str = "cpu") -> PixelAdapter:
    """The model that these weights belong to."""
    spec = spec_of(content.family)
    transformer = spec.build()
    expected = {name: tuple(tensor.shape) for name, tensor in transformer.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in content.weights.items()}
    if expected != found:
        wrong = sorted(name for name in expected | found if expected.get(name) != found.get(name))
        raise WeightsError(
            f"these weights (digest {content.digest}) do not fit {spec.family}: {len(wrong)} of them are missing, "
            f"unknown or of another shape, the first is {wrong[0]}; use weights made for this version of the family."
        )
    transformer.load_state_dict({name: tensor.float() for name, tensor in content.weights.items()})
    return PixelAdapter(spec, transformer.eval().to(usable_device(str(device))))


def load(name_or_path: str, device: torch.device | str = "cpu") -> PixelAdapter:
    """A shipped family by name, or a weights file of one by path."""
    return build(read_weights(name_or_path), device)
