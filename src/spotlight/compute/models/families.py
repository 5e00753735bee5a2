"""The tiny families: their specs, and models of them from anything that `sources.resolve` knows."""

import torch

from spotlight.compute.data.worlds import World, world
from spotlight.compute.models.devices import usable_device
from spotlight.compute.models.pixels import PixelAdapter, PixelSpec
from spotlight.compute.models.results import check_fit, read
from spotlight.compute.models.scenes import SCENES
from spotlight.compute.models.sources import resolve
from spotlight.compute.models.words import WORDS, WORDS_LARGE
from spotlight.compute.weights import files
from spotlight.core.errors import InputError, suggestion

SPECS = {spec.family: spec for spec in (WORDS, WORDS_LARGE, SCENES)}


def spec_of(family: str) -> PixelSpec:
    if family not in SPECS:
        raise InputError(f"there is no model family '{family}': {suggestion(family, SPECS)}")
    return SPECS[family]


def world_of(adapter: PixelAdapter) -> World:
    return world(adapter.family)


def read_weights(name: str) -> files.WeightFile:
    """The verified weights that a name stands for, whole: adapters are merged into the base of their run."""
    return read(resolve(name))


def build(content: files.WeightFile, device: torch.device | str = "cpu") -> PixelAdapter:
    """The model that these weights belong to."""
    spec = spec_of(content.family)
    transformer = spec.build()
    check_fit(content, {name: tuple(tensor.shape) for name, tensor in transformer.state_dict().items()})
    transformer.load_state_dict({name: tensor.float() for name, tensor in content.weights.items()})
    return PixelAdapter(spec, transformer.eval().to(usable_device(str(device))))


def load(name: str, device: torch.device | str = "cpu") -> PixelAdapter:
    """The model that a name stands for."""
    return build(read_weights(name), device)
