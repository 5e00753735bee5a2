"""The newest trained weights of a run, with all that other formats need to know of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from spotlight.compute.models.catalogue import facts_of_source
from spotlight.compute.models.family_registry import FAMILIES, Family
from spotlight.compute.models.results import lora_of
from spotlight.compute.models.sources import Source, SourceKind, base_of, newest_set, resolve, run_settings
from spotlight.compute.train.config import LoraConfig
from spotlight.compute.weights.store import read_set
from spotlight.core.errors import WeightsError
from spotlight.core.work import Policy


@dataclass(frozen=True, kw_only=True)
class TrainedSet:
    """One published set of a run, verified."""

    run: Path
    source: Source
    model: str
    """Name of the base model in the run's settings."""
    version: int
    """Number of the publication."""
    tensors: Mapping[str, Tensor]
    lora: LoraConfig | None

    @property
    def family(self) -> Family | None:
        """The real family; None for a tiny one."""
        return FAMILIES.get(self.source.family)

    def base_folder(self) -> Path:
        """Folder of the model in diffusers layout that the run trains from; refuses another model in its place."""
        base = base_of(self.run)
        if base.kind is not SourceKind.DIFFUSERS:
            raise WeightsError(
                f"the run {self.run} trains from '{self.model}', which has no files in diffusers layout, so nothing "
                "can load its weights; train from a folder or a hub id to export them."
            )
        found = facts_of_source(base).digest
        if found != self.source.base_digest:
            raise WeightsError(
                f"{self.source.path} was trained from base weights {self.source.base_digest}, but {base.location} has "
                f"{found}, and adapters fit their own base only; restore the original base weights."
            )
        return base.path


def read_trained(run: Path, policy: Policy) -> TrainedSet:
    """Read and verify the newest set of the run."""
    source = resolve(str(newest_set(run, policy)))
    content = read_set(source.path)
    return TrainedSet(
        run=run,
        source=source,
        model=str(run_settings(run, "model").get("name")),
        version=content.weights.version,
        tensors=content.tensors,
        lora=lora_of(source) if source.has_adapters else None,
    )
