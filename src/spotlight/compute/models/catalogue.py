"""What is known of a model before it is loaded; free of torch, so that the controller can ask."""

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from spotlight.assets import asset
from spotlight.compute.data.worlds import WORLD_OF_FAMILY, World, world
from spotlight.core.errors import InputError, WeightsError, suggestion

HEADS = 12
PATCHES = {"words": 8, "words-large": 4, "scenes": 8}
"""Edge of the square of pixels that one token stands for, by family; tests/unit/test_catalogue.py compares with it."""


@dataclass(frozen=True)
class ModelFacts:
    """Family, world and digest of a weights file, from its header."""

    family: str
    world: World
    digest: str
    bytes: int
    """Size of the file."""
    heads: int = HEADS

    @property
    def token_pixels(self) -> int:
        return PATCHES[self.family] ** 2

    @property
    def tokens(self) -> int:
        """Image tokens of a picture of its world."""
        return self.world.size.height * self.world.size.width // self.token_pixels


def facts_of(name_or_path: str) -> ModelFacts:
    """Of a shipped family by name, or of a weights file by path."""
    shipped = name_or_path in WORLD_OF_FAMILY
    path = asset(f"weights/{name_or_path}.safetensors") if shipped else Path(name_or_path)
    if not path.is_file():
        raise InputError(
            f"'{name_or_path}' is neither a weights file nor a model family: "
            f"{suggestion(name_or_path, WORLD_OF_FAMILY)}"
        )
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise WeightsError(
            f"the weights file {path} cannot be read ({error}), so it is truncated or not safetensors; copy it again."
        ) from error
    if "digest" not in metadata or "family" not in metadata:
        raise WeightsError(f"the weights file {path} names no family and digest; pass one that Spotlight wrote.")
    return ModelFacts(metadata["family"], world(metadata["family"]), metadata["digest"], path.stat().st_size)
