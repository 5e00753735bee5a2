"""Weight files: safetensors with a verified digest and the family they belong to.

Invariant: the weights that `read` returns are bit for bit what `write` was given; a missing or truncated file and
altered weights are a WeightsError, never a surprise later. The digest is of the weights alone: whether they fit the
family is checked where the model is built.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from spotlight.compute.weights.digest import digest
from spotlight.core.errors import WeightsError


@dataclass(frozen=True)
class WeightFile:
    """The content of one file."""

    family: str
    digest: str
    weights: dict[str, Tensor]


def write(path: Path, family: str, weights: Mapping[str, Tensor]) -> str:
    """Write atomically; returns the digest."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    value = digest(tensors)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.part-{os.getpid()}")
    save_file(tensors, scratch, metadata={"format": "pt", "family": family, "digest": value})
    os.replace(scratch, path)
    return value


def read(path: Path) -> WeightFile:
    """Read and verify."""
    if not path.is_file():
        raise WeightsError(f"the weights file {path} does not exist; check the path, or reinstall the package.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise WeightsError(
            f"the weights file {path} ({path.stat().st_size} bytes) cannot be read ({error}), so it is truncated or "
            "not safetensors; copy or download it again."
        ) from error
    if "digest" not in metadata or "family" not in metadata:
        raise WeightsError(f"the weights file {path} names no family and digest, so Spotlight did not write it; "
                           "pass a file made by `spotlight pretrain` or a training run.")  # fmt: skip
    found = digest(weights)
    if found != metadata["digest"]:
        raise WeightsError(
            f"the weights in {path} have digest {found} but the file says {metadata['digest']}, so it was altered; "
            "copy or download it again."
        )
    return WeightFile(family=metadata["family"], digest=found, weights=weights)
