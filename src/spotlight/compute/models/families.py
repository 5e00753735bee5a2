"""The tiny families: their specs, and their models from any name that `sources.resolve` accepts."""

import torch

from spotlight.compute.data import scenes, words
from spotlight.compute.data.worlds import World, world
from spotlight.compute.models.config import CUDA, device_of
from spotlight.compute.models.pixels import PixelAdapter, PixelSpec
from spotlight.compute.models.results import check_fit, read
from spotlight.compute.models.sources import resolve
from spotlight.compute.models.text_table import TextTable
from spotlight.compute.weights import files
from spotlight.core.errors import EnvironmentProblem, InputError, suggestion


def usable_device(name: str) -> torch.device:
    """Return the device `cpu`, `cuda` or `cuda:N`; raises EnvironmentProblem if this machine lacks it."""
    kind, number = device_of(name)
    if kind == CUDA and torch.cuda.device_count() <= (number or 0):
        raise EnvironmentProblem(
            f"the device is '{name}', but torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices "
            "here; use cpu, or install a CUDA build of torch and free a GPU."
        )
    return torch.device(name)


LETTERS = TextTable.of(words.VOCABULARY)
WORDS = PixelSpec(family="words", size=words.SIZE, patch=8, layers=4, head_dim=14, rope_axes=(2, 6, 6), text=LETTERS)
WORDS_LARGE = PixelSpec(
    family="words-large", size=words.SIZE, patch=4, layers=6, head_dim=16, rope_axes=(4, 6, 6), text=LETTERS
)
"""Images of a given word, spelt with a character table."""
SCENES = PixelSpec(
    family="scenes",
    size=scenes.SIZE,
    patch=8,
    layers=4,
    head_dim=14,
    rope_axes=(2, 6, 6),
    text=TextTable.of(scenes.VOCABULARY),
)
"""Coloured shapes that follow GenEval's six tasks, described in a closed vocabulary."""
SPECS = {spec.family: spec for spec in (WORDS, WORDS_LARGE, SCENES)}


def spec_of(family: str) -> PixelSpec:
    if family not in SPECS:
        raise InputError(f"there is no model family '{family}': {suggestion(family, SPECS)}")
    return SPECS[family]


def world_of(adapter: PixelAdapter) -> World:
    return world(adapter.family)


def read_weights(name: str) -> files.WeightFile:
    """Read and verify the weights that a name resolves to; adapters are merged into the base of their run."""
    return read(resolve(name))


def build(content: files.WeightFile, device: torch.device | str = "cpu") -> PixelAdapter:
    """Build the model of these weights."""
    spec = spec_of(content.family)
    transformer = spec.build()
    check_fit(content, {name: tuple(tensor.shape) for name, tensor in transformer.state_dict().items()})
    transformer.load_state_dict({name: tensor.float() for name, tensor in content.weights.items()})
    return PixelAdapter(spec, transformer.eval().to(usable_device(str(device))))


def load(name: str, device: torch.device | str = "cpu") -> PixelAdapter:
    """Load the model that a name resolves to."""
    return build(read_weights(name), device)
