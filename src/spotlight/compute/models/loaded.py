"""Models loaded from any name that `sources.resolve` accepts, ready to sample."""

from dataclasses import dataclass

from spotlight.compute.data.worlds import World
from spotlight.compute.models import families
from spotlight.compute.models.adapter import Adapter
from spotlight.compute.models.families import usable_device
from spotlight.compute.models.results import read
from spotlight.compute.models.sources import Source, SourceKind, resolve
from spotlight.core.errors import SizeError
from spotlight.core.types import Size

REAL_BATCH, TINY_BATCH = 4, 64


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A loaded model; only the tiny families have a world and a digest."""

    adapter: Adapter
    source: Source
    size: Size
    batch: int
    """Images per forward that the smallest usual device holds."""
    world: World | None = None
    digest: str | None = None


def load_checkpoint(name: str, device: str, size: Size | None = None) -> LoadedModel:
    """Load a model: a real family if it is in diffusers layout, else a tiny one."""
    source = resolve(name)
    if source.kind is SourceKind.DIFFUSERS:
        return _in_diffusers_layout(source, device, size)
    weights = read(source)
    adapter = families.build(weights, device)
    chosen = size or adapter.native_size
    adapter.latent_shape(chosen)
    return LoadedModel(
        adapter=adapter,
        source=source,
        size=chosen,
        batch=TINY_BATCH,
        world=families.world_of(adapter),
        digest=weights.digest,
    )


def parse_size(text: str) -> Size:
    """Parse `HEIGHTxWIDTH` in pixels."""
    height, _, width = text.partition("x")
    if not (height.isdecimal() and width.isdecimal() and int(height) and int(width)):
        raise SizeError(f"the size '{text}' is not HEIGHTxWIDTH in pixels; write it like 512x768.")
    return Size(int(height), int(width))


def _in_diffusers_layout(source: Source, device: str, size: Size | None) -> LoadedModel:
    import torch

    from spotlight.compute.models.pipeline_adapter import load_model

    usable = usable_device(device)
    # On a CPU bf16 is slower than fp32, and on some virtual machines an illegal instruction.
    dtype = torch.float32 if usable.type == "cpu" else torch.bfloat16
    adapter = load_model(source.location, usable, dtype)
    chosen = size or adapter.facts.default_size
    adapter.latent_shape(chosen)
    return LoadedModel(adapter=adapter, source=source, size=chosen, batch=REAL_BATCH)
