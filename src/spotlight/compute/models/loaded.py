"""Models loaded from any name that `sources.resolve` accepts, ready to sample or to train."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spotlight.compute.data.worlds import World
from spotlight.compute.models import families
from spotlight.compute.models.adapter import Adapter
from spotlight.compute.models.catalogue import facts_of_source
from spotlight.compute.models.config import ModelConfig
from spotlight.compute.models.families import usable_device
from spotlight.compute.models.family_registry import FAMILIES
from spotlight.compute.models.results import lora_of, read, trained_tensors
from spotlight.compute.models.sources import Source, SourceKind, base_of, resolve, run_settings
from spotlight.core.errors import WeightsError
from spotlight.core.types import Size

REAL_BATCH, TINY_BATCH = 4, 64


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A loaded model; only the tiny families have a world."""

    adapter: Adapter
    source: Source
    size: Size
    batch: int
    """Images per forward that the smallest usual device holds."""
    digest: str
    world: World | None = None


def load_checkpoint(name: str, device: str, size: Size | None = None) -> LoadedModel:
    """Load a model by its name; the result of a run of a real family is its base with the trained weights."""
    source = resolve(name)
    if source.family in FAMILIES and source.kind in (SourceKind.PUBLISHED, SourceKind.CHECKPOINT):
        return _trained(source, device, size)
    return load_source(source, ModelConfig(name=name, device=device), device, size)


def load_source(
    source: Source, model: ModelConfig, device: str | torch.device, size: Size | None = None
) -> LoadedModel:
    """Load a whole model with the settings of section `model`, on `device`."""
    usable = usable_device(str(device))
    if source.family in FAMILIES:
        return _real(source, model, usable, size)
    weights = read(source)
    adapter = families.build(weights, usable)
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


def _real(source: Source, model: ModelConfig, device: torch.device, size: Size | None) -> LoadedModel:
    # Imported here: diffusers and transformers take several times as long to import as torch.
    from spotlight.compute.models.pipeline_adapter import load_model
    from spotlight.compute.models.random_weights import random_full

    facts = facts_of_source(source)
    dtype: torch.dtype = getattr(torch, facts.precision(model))
    if source.kind is SourceKind.RANDOM:
        adapter = random_full(FAMILIES[source.family], device, dtype, max_text_tokens=model.max_text_tokens)
    else:
        adapter = load_model(source.location, device, dtype, model.max_text_tokens)
    chosen = size or facts.default_size
    adapter.latent_shape(chosen)
    return LoadedModel(adapter=adapter, source=source, size=chosen, batch=REAL_BATCH, digest=facts.digest)


def _trained(source: Source, device: str, size: Size | None) -> LoadedModel:
    """The base of a run with the weights that the run trained; adapters stay beside the weights that they adapt."""
    from spotlight.compute.train.lora import select_trainable

    settings = ModelConfig.model_validate(run_settings(source.run, "model")).model_copy(update={"device": device})
    base = load_source(base_of(source.run), settings, device, size)
    if base.digest != source.base_digest:
        raise WeightsError(
            f"{source.path} was trained from base weights {source.base_digest}, but those of its run {source.run} are "
            f"{base.digest}, and adapters fit their own base only; restore the original base weights."
        )
    adapter = base.adapter
    lora = lora_of(source) if source.has_adapters else None
    select_trainable(adapter.transformer, lora, adapter.lora_targets, seed=0)
    apply_trained(adapter, trained_tensors(source), source)
    return LoadedModel(adapter=adapter, source=source, size=base.size, batch=REAL_BATCH, digest=source.digest)


def apply_trained(adapter: Adapter, tensors: Mapping[str, Tensor], source: Source) -> None:
    """Copy a run's trained tensors into the parameters of the same names, and refuse any difference in names."""
    trainable = {name: p for name, p in adapter.transformer.named_parameters() if p.requires_grad}
    wrong = sorted({*trainable} ^ {*tensors}) or [
        name for name, p in trainable.items() if p.shape != tensors[name].shape
    ]
    if wrong:
        raise WeightsError(
            f"{source.path} holds {len(tensors)} tensors that do not fit the {len(trainable)} that its run "
            f"{source.run} trains (first: {wrong[0]}); restore its config.json."
        )
    for name, parameter in trainable.items():
        parameter.data.copy_(tensors[name])
