"""The header of a weights file; read without torch and without its tensors.

Two kinds of file hold weights:

    weights file    family, digest: a cryptographic hash, because such files leave the machine
                    (compute/weights/files.py)
    published set   family, fingerprint, base_digest, version, policy: written by a run, which identifies its weights
                    by a fingerprint because that costs almost nothing (compute/weights/store.py)
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

from spotlight.core.errors import WeightsError
from spotlight.core.types import Version
from spotlight.core.work import Policy, WeightsId

LORA_MARK = ".lora_A."
"""Part of peft's name for one of the two matrices of every LoRA adapter."""


@dataclass(frozen=True)
class FileFacts:
    """Header of a weights file."""

    family: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class SetFacts:
    """Header of a published set."""

    family: str
    fingerprint: str
    base_digest: str
    """Digest of the base weights, which supply every tensor that the set lacks."""
    weights: WeightsId
    has_adapters: bool
    """True: adapters for the base weights. False: all weights of the family."""


def read_facts(path: Path) -> FileFacts | SetFacts:
    """Read the header of either kind of file."""
    metadata, names = _header(path)
    if "policy" in metadata:
        return set_facts(path, metadata, names)
    if "digest" not in metadata or "family" not in metadata:
        raise WeightsError(
            f"the weights file {path} has no family and digest, so Spotlight did not write it; pass a file made by "
            "`spotlight pretrain` or a training run."
        )
    return FileFacts(metadata["family"], metadata["digest"])


def set_facts(path: Path, metadata: Mapping[str, str] | None, names: Collection[str]) -> SetFacts:
    """Parse the facts of a published set from its metadata and the names of its tensors."""
    fields = dict(metadata or {})
    # Runs of earlier versions wrote the fingerprint as `digest`; their results stay usable.
    fields.setdefault("fingerprint", fields.get("digest", ""))
    absent = [key for key in ("base_digest", "family", "fingerprint", "policy", "version") if not fields.get(key)]
    if absent:
        raise WeightsError(
            f"the weights file {path} has no {', '.join(absent)}, so no trainer published it; pass a file of a run's "
            "weight store."
        )
    try:
        weights = WeightsId(Version(int(fields["version"])), Policy(fields["policy"]))
    except ValueError as error:
        raise WeightsError(
            f"the weights file {path} is version '{fields['version']}' of '{fields['policy']}', which no trainer "
            "publishes; pass a file of a run's weight store."
        ) from error
    return SetFacts(
        family=fields["family"],
        fingerprint=fields["fingerprint"],
        base_digest=fields["base_digest"],
        weights=weights,
        has_adapters=holds_adapters(names),
    )


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the shape of every tensor in a file."""
    try:
        with safe_open(path, framework="np") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise unreadable(path, error) from error


def holds_adapters(names: Collection[str]) -> bool:
    return any(LORA_MARK in name for name in names)


def unreadable(path: Path, error: Exception) -> WeightsError:
    """Return the error for a file that could not be opened; its run may have just deleted it."""
    if isinstance(error, FileNotFoundError) or not path.is_file():
        return WeightsError(f"the weights file {path} does not exist; check the path, or reinstall the package.")
    return WeightsError(
        f"the weights file {path} ({path.stat().st_size} bytes) cannot be read ({error}), so it is truncated or not "
        "safetensors; copy or download it again."
    )


def _header(path: Path) -> tuple[dict[str, str], list[str]]:
    try:
        with safe_open(path, framework="np") as file:
            return file.metadata() or {}, list(file.keys())
    except (SafetensorError, OSError) as error:
        raise unreadable(path, error) from error
