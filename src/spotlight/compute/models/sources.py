"""Resolves the name of a model to its weights; free of torch, for the controller.

    words, words-large, scenes         shipped weights of that family
    FILE.safetensors                   a weights file, or a published set of a run (RUN/weights/average-30.safetensors)
    RUN                                name or folder of a run: its newest averaged weights, which its evaluations use
    RUN/checkpoints/step_000060        the averaged weights of that checkpoint
    FOLDER in diffusers layout         a model of a real family (`family_registry.py`)
    owner/name                         such a folder from the hub, fetched if the hub's cache lacks it
    random-tiny:FAMILY                 such a folder with a tiny transformer and random weights, for a laptop
    random:FAMILY                      the released size with random weights, without a file, to measure speed

Published sets and checkpoints of LoRA runs hold adapters only. Their base weights are those of their run, found through
the run's folder (`base_of`).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from spotlight.assets import asset
from spotlight.compute.data.worlds import WORLD_OF_FAMILY
from spotlight.compute.models.family_registry import FAMILIES, family_named
from spotlight.compute.models.fetched import RANDOM, RANDOM_TINY, hub_folder, tiny_folder
from spotlight.compute.models.folder_facts import family_in_folder
from spotlight.compute.weights.header import FileFacts, read_facts
from spotlight.compute.weights.index import is_checkpoint, read_index
from spotlight.core.errors import InputError, WeightsError, suggestion
from spotlight.core.run_files import BASE, BASE_FOLDER, CHECKPOINTS, CONFIG, JOURNAL, WEIGHTS, find_run, run_names
from spotlight.core.work import Policy

PACED = "paced-"
"""Prefix of the base digest of a paced run, whose workers wait instead of computing."""


class SourceKind(StrEnum):
    """Storage format of the weights."""

    FILE = "file"
    PUBLISHED = "published"
    CHECKPOINT = "checkpoint"
    DIFFUSERS = "diffusers"
    RANDOM = "random"


@dataclass(frozen=True, kw_only=True)
class Source:
    """One set of weights and its location."""

    kind: SourceKind
    location: str
    """Absolute path of a file or folder; the name itself for `random:FAMILY`."""
    family: str
    digest: str = ""
    """Identity of these weights: a weights file's digest, or the identity recorded in a run's set or checkpoint; empty
    for a folder in diffusers layout, whose digest is a fact of its files (`folder_facts.py`)."""
    base_digest: str = ""
    """Digest of the weights that the run trained from; only of a set or checkpoint."""
    has_adapters: bool = False

    @property
    def path(self) -> Path:
        return Path(self.location)

    @property
    def run(self) -> Path:
        """Folder of the run, if it still exists; only of a set or checkpoint."""
        return self.path.parent.parent


def is_shipped(name: str) -> bool:
    return name in WORLD_OF_FAMILY


def resolve(name: str) -> Source:
    """Return the weights that the name stands for now; raises InputError if there are none."""
    if is_shipped(name):
        return _file(asset(f"weights/{name}.safetensors"))
    if name.startswith(RANDOM_TINY):
        return _folder(tiny_folder(family_named(name.removeprefix(RANDOM_TINY))))
    if name.startswith(RANDOM):
        family = family_named(name.removeprefix(RANDOM)).name
        return Source(kind=SourceKind.RANDOM, location=name, family=family, digest=f"random-{family}")
    path = Path(name).expanduser()
    if path.is_file() or path.suffix == ".safetensors":
        return _file(path)
    if is_checkpoint(path):
        return _checkpoint(path)
    run = _run(name)
    if run is not None:
        return _file(newest_set(run))
    if path.is_dir() and not any((path / part).exists() for part in ("model_index.json", "transformer")):
        inside = _children(path)
        raise InputError(
            f"the folder {path} is neither a run nor a checkpoint nor a model, because it has no model_index.json and "
            f"no transformer/; name {inside or 'another folder'}."
        )
    if path.is_dir() or _is_hub_id(name):
        return _folder(path if path.is_dir() else hub_folder(name))
    siblings = _kept(path)
    if siblings:
        raise InputError(f"there is no checkpoint {path}, and its run keeps {siblings} only; name one of them.")
    raise InputError(
        f"'{name}' is neither a weights file nor a model family, a run, a checkpoint or a folder in diffusers layout: "
        f"{suggestion(name, [*WORLD_OF_FAMILY, *(f'{RANDOM_TINY}{family}' for family in FAMILIES), *run_names()])}"
    )


def newest_set(run: Path, policy: Policy = Policy.AVERAGE) -> Path:
    """The file of the newest weights of this policy that the run has published."""
    found = {
        int(version): path
        for path in (run / WEIGHTS).glob(f"{policy.value}-*.safetensors")
        if (version := path.stem.rpartition("-")[2]).isdecimal()
    }
    if not found:
        kept = ", ".join(path.name for path in sorted((run / CHECKPOINTS).glob("step_*"))) or "no checkpoint"
        kind, event = ("averaged", "evaluation") if policy is Policy.AVERAGE else ("rolled-out", "iteration")
        raise InputError(
            f"the run {run} has published no {kind} weights yet (it has {kept}); its first {event} writes them: "
            "let it continue, or name one of its checkpoints."
        )
    return found[max(found)]


def base_of(run: Path) -> Source:
    """Base weights of a run: its own copy, those of a shipped family, or a model in diffusers layout."""
    for own in (run / BASE, run / BASE_FOLDER):
        if own.exists():
            return resolve(str(own))
    name = str(run_settings(run, "model").get("name"))
    source = resolve(name)
    if source.kind in (SourceKind.PUBLISHED, SourceKind.CHECKPOINT):
        raise WeightsError(
            f"the run {run} trains from '{name}', which is neither a weights file nor a model in diffusers layout, so "
            f"its adapters have no base; restore its {BASE}."
        )
    return source


def run_settings(run: Path, section: str) -> dict[str, Any]:
    """One section of the run's stored settings."""
    try:
        found = json.loads((run / CONFIG).read_text())[section]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(
            f"the settings of the run {run} cannot be read ({type(error).__name__}: {error}), and they hold base and "
            f"rank of its adapters; restore its {CONFIG}."
        ) from error
    return found if isinstance(found, dict) else {}


def _run(name: str) -> Path | None:
    """Folder of the named run; one with settings alone may be a part of a model in diffusers layout."""
    run = find_run(name)
    parts: Sequence[str] = (JOURNAL, WEIGHTS, CHECKPOINTS)
    return run if run is not None and any((run / part).is_dir() for part in parts) else None


def _folder(path: Path) -> Source:
    return Source(kind=SourceKind.DIFFUSERS, location=str(path.resolve()), family=family_in_folder(path).name)


def _file(path: Path) -> Source:
    if not path.is_file() and path.name == BASE and _run(str(path.parent)) is not None:
        raise WeightsError(
            f"the run {path.parent} has lost its {BASE}, which holds the weights that it trains from; restore the "
            "file, or start a new run."
        )
    if not path.is_file() and (siblings := _kept(path)):
        raise WeightsError(
            f"the weights file {path} does not exist, and its run keeps {siblings} only, because a run deletes its "
            f"older sets; name one of them, or the run."
        )
    facts, location = read_facts(path), str(path.resolve())
    if isinstance(facts, FileFacts):
        return Source(kind=SourceKind.FILE, location=location, family=facts.family, digest=facts.digest)
    _check_computed(path, facts.base_digest)
    parts = (facts.base_digest, facts.fingerprint)
    return Source(
        kind=SourceKind.PUBLISHED,
        location=location,
        family=facts.family,
        digest=_named(*parts) if facts.has_adapters else facts.fingerprint,
        base_digest=facts.base_digest,
        has_adapters=facts.has_adapters,
    )


def _checkpoint(folder: Path) -> Source:
    index = read_index(folder)
    _check_computed(folder, index.base_digest)
    return Source(
        kind=SourceKind.CHECKPOINT,
        location=str(folder.resolve()),
        family=index.family,
        digest=index.identity(),
        base_digest=index.base_digest,
        has_adapters=index.has_adapters,
    )


def _check_computed(path: Path, base_digest: str) -> None:
    if base_digest.startswith(PACED):
        raise WeightsError(
            f"{path} comes from a paced run, whose workers wait instead of computing, so it holds no model; train "
            "without --pace to get one."
        )


def _kept(path: Path) -> str:
    """Names of the run's remaining files of this path's kind, newest last."""
    if path.parent.name not in (WEIGHTS, CHECKPOINTS) or _run(str(path.parent.parent)) is None:
        return ""
    return ", ".join(sorted(other.name for other in path.parent.glob("*[0-9]*") if not other.name.endswith(".part")))


def _children(path: Path) -> str:
    """Sets, checkpoints and runs in the folder, newest last."""
    found = [child for child in sorted(path.iterdir()) if child.suffix == ".safetensors" or is_checkpoint(child)]
    found += [child for child in sorted(path.iterdir()) if _run(str(child)) is not None]
    listed = ", ".join(str(child) for child in found[-3:])
    return f"one in it, for instance {listed}" if listed else ""


def _named(*parts: str) -> str:
    return hashlib.blake2b("|".join(parts).encode(), digest_size=16).hexdigest()


def _is_hub_id(name: str) -> bool:
    """Whether the name is `owner/name`; if `owner` is a local folder, it is a misspelt path, and no hub request."""
    owner, slash, rest = name.partition("/")
    path_like = rest.endswith(".safetensors") or "/" in rest or owner in ("", ".", "..", "~") or Path(owner).is_dir()
    return bool(slash and rest) and not path_like
