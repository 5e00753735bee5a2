"""What is known of a model before it is loaded; free of torch, so that the controller can ask."""

from dataclasses import dataclass

from spotlight.compute.data.worlds import World, world
from spotlight.compute.models.sources import Kind, resolve
from spotlight.core.errors import InputError, suggestion

HEADS = 12
PATCHES = {"words": 8, "words-large": 4, "scenes": 8}
"""Edge of the square of pixels that one token stands for, by family; tests/unit/test_catalogue.py compares with it."""


@dataclass(frozen=True)
class ModelFacts:
    """Family, world and digest of a tiny model, from the headers of its files."""

    family: str
    world: World
    digest: str
    heads: int = HEADS

    @property
    def token_pixels(self) -> int:
        return PATCHES[self.family] ** 2

    @property
    def tokens(self) -> int:
        """Image tokens of a picture of its world."""
        return self.world.size.height * self.world.size.width // self.token_pixels


def facts_of(name: str) -> ModelFacts:
    """Of anything that `sources.resolve` knows and a run can train."""
    source = resolve(name)
    if source.kind is Kind.DIFFUSERS:
        raise InputError(
            f"'{name}' would be a model in diffusers layout, which can be evaluated but not trained yet; name a model "
            f"family, a weights file, a run or a checkpoint: {suggestion(name, PATCHES)}"
        )
    return ModelFacts(source.family, world(source.family), source.digest)
