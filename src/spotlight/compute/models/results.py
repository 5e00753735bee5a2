"""Reads weights files, published sets and checkpoints as whole, verified weights of their family.

Invariant: the same weights have the same digest wherever they are read from (tests/unit/test_sources.py).
"""

from collections.abc import Mapping

from pydantic import ValidationError
from torch import Tensor

from spotlight.compute.data.worlds import WORLD_OF_FAMILY
from spotlight.compute.models.family_registry import FAMILIES
from spotlight.compute.models.sources import Source, SourceKind, base_of, run_settings
from spotlight.compute.train.config import LoraConfig
from spotlight.compute.weights import files, shards
from spotlight.compute.weights.digest import digest
from spotlight.compute.weights.index import EMA, read_index
from spotlight.compute.weights.store import read_set
from spotlight.core.errors import InputError, WeightsError


def read(source: Source) -> files.WeightFile:
    """Read and verify the weights of one source."""
    if source.family in FAMILIES:
        raise InputError(
            f"{source.location} is a {source.family}, but weights of one of {', '.join(WORLD_OF_FAMILY)} are needed; "
            "name such weights."
        )
    if source.kind is SourceKind.FILE:
        return files.read(source.path)
    tensors = trained_tensors(source)
    whole = _merged(source, tensors) if source.has_adapters else dict(tensors)
    return files.WeightFile(family=source.family, digest=digest(whole), weights=whole)


def trained_tensors(source: Source) -> Mapping[str, Tensor]:
    """Tensors of a run's published set, or the averaged ones of its checkpoint: adapters, or the whole transformer."""
    return read_set(source.path).tensors if source.kind is SourceKind.PUBLISHED else _averaged(source)


def lora_of(source: Source) -> LoraConfig:
    """Rank and scale of the adapters that the source's run trains."""
    try:
        return LoraConfig.model_validate(run_settings(source.run, "train").get("lora"))
    except ValidationError as error:
        raise WeightsError(
            f"{source.path} holds adapters, but the settings of its run {source.run} have no valid train.lora with "
            "their rank and scale; restore its config.json."
        ) from error


def check_fit(content: files.WeightFile, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse weights whose names and shapes are not those of their family."""
    found = {name: tuple(tensor.shape) for name, tensor in content.weights.items()}
    if found != expected:
        wrong = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
        raise WeightsError(
            f"these weights (digest {content.digest}) do not fit {content.family}: {len(wrong)} tensors are missing, "
            f"unknown or of another shape (first: {wrong[0]}); use weights made for this version of the family."
        )


def _averaged(checkpoint: Source) -> dict[str, Tensor]:
    index = read_index(checkpoint.path)
    try:
        tensors = shards.read(checkpoint.path, index, index.averaged())
    except (ValueError, RuntimeError) as error:
        raise WeightsError(
            f"the checkpoint {checkpoint.path} cannot be read ({error}), so it is damaged; name another one."
        ) from error
    return {name.removeprefix(EMA): tensor for name, tensor in tensors.items()}


def _merged(source: Source, adapters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Merge adapters into the base weights that their run trained from."""
    # Imported here: diffusers and peft take several times as long to import as torch.
    from spotlight.compute.models.families import build
    from spotlight.compute.train.lora import merged_state, select_trainable

    base = files.read(base_of(source.run).path)
    if base.digest != source.base_digest:
        raise WeightsError(
            f"{source.path} holds adapters of base weights {source.base_digest}, but those of its run {source.run} are "
            f"{base.digest}, and adapters fit their own base only; restore the original base weights."
        )
    model = build(base)
    lora = lora_of(source)
    select_trainable(model.transformer, lora, model.lora_targets, seed=0)
    trainable = {name: p for name, p in model.transformer.named_parameters() if p.requires_grad}
    wanted = {name: (tuple(p.shape), p.dtype) for name, p in trainable.items()}
    if wanted != {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in adapters.items()}:
        raise WeightsError(
            f"{source.path} holds {len(adapters)} adapters that do not fit the {len(wanted)} of rank {lora.rank} that "
            f"its run {source.run} trains; restore its config.json."
        )
    for name, parameter in trainable.items():
        parameter.data.copy_(adapters[name])
    return {name: tensor.detach().contiguous() for name, tensor in merged_state(model.transformer).items()}
