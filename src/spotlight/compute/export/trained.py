"""The newest trained weights of a run, and the run's model with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from spotlight.compute.export.adapters import prepare
from spotlight.compute.models.families import usable_device
from spotlight.compute.models.family_registry import FAMILIES, Family
from spotlight.compute.models.loaded import REAL_BATCH, LoadedModel, load_checkpoint
from spotlight.compute.models.pipeline_adapter import load_model
from spotlight.compute.models.sources import Source, SourceKind, base_of, newest_set, resolve, run_settings
from spotlight.compute.train.config import LoraConfig
from spotlight.compute.weights.store import read_set
from spotlight.core.errors import WeightsError
from spotlight.core.types import Size
from spotlight.core.work import Policy


@dataclass(frozen=True, kw_only=True)
class TrainedSet:
    """One published set of a run, verified."""

    run: Path
    source: Source
    base: str
    """Name of the model that the run trains from."""
    version: int
    """Number of the publication."""
    tensors: Mapping[str, Tensor]
    lora: LoraConfig | None

    @property
    def family(self) -> Family | None:
        """The real family; None for a tiny one."""
        return FAMILIES.get(self.source.family)


def read_trained(run: Path, policy: Policy) -> TrainedSet:
    """Read and verify the newest set of the run."""
    source = resolve(str(newest_set(run, policy)))
    content = read_set(source.path)
    return TrainedSet(
        run=run,
        source=source,
        base=str(run_settings(run, "model").get("name")),
        version=content.weights.version,
        tensors=content.tensors,
        lora=_lora_of(run) if source.has_adapters else None,
    )


def base_folder(trained: TrainedSet) -> Path:
    """Folder of the model in diffusers layout that the run trains from."""
    base = base_of(trained.run)
    if base.kind is not SourceKind.DIFFUSERS or not base.path.is_dir():
        raise WeightsError(
            f"the run {trained.run} has weights of {trained.source.family}, but its base model '{trained.base}' is not "
            "a folder in diffusers layout, so its adapters have no module names; restore the base model."
        )
    return base.path


def apply(trained: TrainedSet, transformer: nn.Module, family: Family) -> None:
    """Put the trained weights into the base transformer: beside its own as adapters, or in their place."""
    parameters = prepare(transformer, trained.lora, family.lora_targets, trained.tensors)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(trained.tensors[name])
    transformer.requires_grad_(False)


def load_run(run: Path, device: str, size: Size | None) -> LoadedModel:
    """Load a run's model with its averaged weights, ready to sample; adapters stay beside the base weights."""
    trained = read_trained(run, Policy.AVERAGE)
    if trained.family is None:
        return load_checkpoint(trained.source.location, device, size)
    usable = usable_device(device)
    dtype = torch.float32 if usable.type == "cpu" or trained.lora is None else torch.bfloat16
    adapter = load_model(str(base_folder(trained)), usable, dtype)
    apply(trained, adapter.transformer, trained.family)
    chosen = size or adapter.facts.default_size
    adapter.latent_shape(chosen)
    return LoadedModel(adapter=adapter, source=trained.source, size=chosen, batch=REAL_BATCH)


def _lora_of(run: Path) -> LoraConfig:
    try:
        return LoraConfig.model_validate(run_settings(run, "train").get("lora"))
    except ValidationError as error:
        raise WeightsError(
            f"the run {run} has published adapters, but its settings have no valid train.lora with their rank and "
            "scale; restore its config.json."
        ) from error
