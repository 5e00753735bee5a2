"""Facts of a model before it is loaded; free of torch, for the controller."""

import math
from dataclasses import dataclass

from spotlight.assets import asset
from spotlight.compute.data.worlds import World, world
from spotlight.compute.models.sources import SourceKind, resolve
from spotlight.compute.weights.header import read_shapes
from spotlight.core.errors import InputError, suggestion

HEADS = 12
PATCHES = {"words": 8, "words-large": 4, "scenes": 8}
"""Edge in pixels of the square patch of one token, by family (checked by tests/unit/test_catalogue.py)."""


@dataclass(frozen=True)
class ModelFacts:
    """Family, world, digest and size of a tiny model, from the headers of its files."""

    family: str
    world: World
    digest: str
    parameters: int
    matrix_edges: int
    """Sum of rows and columns over all matrices: adapters of rank r have at most r times this many parameters."""
    heads: int = HEADS

    @property
    def bytes(self) -> int:
        """Bytes of the loaded weights, in fp32."""
        return 4 * self.parameters

    @property
    def token_pixels(self) -> int:
        return PATCHES[self.family] ** 2

    @property
    def tokens(self) -> int:
        """Number of image tokens at its world's size."""
        return self.world.size.height * self.world.size.width // self.token_pixels


def facts_of(name: str) -> ModelFacts:
    """Facts of any name that `sources.resolve` accepts and a run can train."""
    source = resolve(name)
    if source.kind is SourceKind.DIFFUSERS:
        raise InputError(
            f"'{name}' would be a model in diffusers layout, which can be evaluated but not trained yet; name a model "
            f"family, a weights file, a run or a checkpoint: {suggestion(name, PATCHES)}"
        )
    # Every model of a family has the shapes of the shipped one.
    shapes = read_shapes(asset(f"weights/{source.family}.safetensors")).values()
    return ModelFacts(
        source.family,
        world(source.family),
        source.digest,
        parameters=sum(map(math.prod, shapes)),
        matrix_edges=sum(sum(shape) for shape in shapes if len(shape) == 2),
    )
