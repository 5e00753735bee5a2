"""Weight files: safetensors with a verified digest and the name of their family.

Invariant: `read` returns bit for bit the weights that `write` was given; a missing or truncated file and altered
weights are a WeightsError. The digest covers the weights alone; the model's builder checks that they fit the family.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from spotlight.compute.weights.digest import digest
from spotlight.compute.weights.header import FileFacts, read_facts, unreadable
from spotlight.core.errors import WeightsError


@dataclass(frozen=True)
class WeightFile:
    """The content of one file."""

    family: str
    digest: str
    weights: dict[str, Tensor]


def write(path: Path, family: str, weights: Mapping[str, Tensor], origin: str | None = None) -> str:
    """Write atomically and return the digest; `origin` is a note on where the weights come from."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    value = digest(tensors)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.part-{os.getpid()}")
    metadata = {"format": "pt", "family": family, "digest": value}
    save_file(tensors, scratch, metadata=metadata if origin is None else {**metadata, "origin": origin})
    os.replace(scratch, path)
    return value


def read(path: Path) -> WeightFile:
    """Read and verify."""
    facts = read_facts(path)
    if not isinstance(facts, FileFacts):
        raise WeightsError(
            f"{path} is the set {facts.weights} of a run, not a weights file, and may hold adapters only; pass it "
            "as a model name instead."
        )
    try:
        with safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise unreadable(path, error) from error
    found = digest(weights)
    if found != facts.digest:
        raise WeightsError(
            f"the weights in {path} have digest {found} but its header has {facts.digest}, so it was altered; copy or "
            "download it again."
        )
    return WeightFile(family=facts.family, digest=found, weights=weights)
