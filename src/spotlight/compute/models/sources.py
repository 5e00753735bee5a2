"""What the name of a model stands for; the one place that decides it, free of torch so that the controller can ask.

    words, words-large, scenes         shipped weights of that family
    FILE.safetensors                   a weights file, or a published set of a run (RUN/weights/average-30.safetensors)
    RUN                                name or folder of a run: its newest averaged weights, which it evaluates itself
    RUN/checkpoints/step_000060        the averaged weights of that checkpoint
    FOLDER in diffusers layout, owner/name      a Qwen-Image, which can be evaluated and not trained

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
from spotlight.compute.weights.header import FileFacts, read_facts
from spotlight.compute.weights.index import is_checkpoint, read_index
from spotlight.core.errors import InputError, WeightsError, suggestion
from spotlight.core.run_files import BASE, CHECKPOINTS, CONFIG, JOURNAL, WEIGHTS, find_run, run_names
from spotlight.core.work import Policy

QWEN_IMAGE = "qwen-image"
PACED = "paced-"
"""Begins the base digest of a run whose workers waited instead of computing."""


class SourceKind(StrEnum):
    """How the weights are stored."""

    FILE = "file"
    PUBLISHED = "published"
    CHECKPOINT = "checkpoint"
    DIFFUSERS = "diffusers"


@dataclass(frozen=True, kw_only=True)
class Source:
    """One set of weights, at one place."""

    kind: SourceKind
    location: str
    """Absolute path of a file or folder; or a hub id."""
    family: str
    digest: str = ""
    """Names these weights: a weights file's digest, or what a run's set or checkpoint says of its own bytes."""
    base_digest: str = ""
    """Of a set or checkpoint: the digest of the weights that its run trained from."""
    has_adapters: bool = False

    @property
    def path(self) -> Path:
        return Path(self.location)

    @property
    def run(self) -> Path:
        """Of a set or checkpoint: the folder of its run, if it is still there."""
        return self.path.parent.parent


def is_shipped(name: str) -> bool:
    return name in WORLD_OF_FAMILY


def resolve(name: str) -> Source:
    """What is there now under that name; InputError where it is nothing."""
    if is_shipped(name):
        return _file(asset(f"weights/{name}.safetensors"))
    path = Path(name).expanduser()
    if path.is_file() or path.suffix == ".safetensors":
        return _file(path)
    if is_checkpoint(path):
        return _checkpoint(path)
    run = _run(name)
    if run is not None:
        return _file(newest_average(run))
    if path.is_dir() and not any((path / part).exists() for part in ("model_index.json", "transformer")):
        inside = _children(path)
        raise InputError(
            f"the folder {path} is neither a run nor a checkpoint, and no model either, since it has no "
            f"model_index.json and no transformer/; name {inside or 'another folder'}."
        )
    if path.is_dir() or _is_hub_id(name):
        return Source(
            kind=SourceKind.DIFFUSERS, location=str(path.resolve()) if path.is_dir() else name, family=QWEN_IMAGE
        )
    siblings = _kept(path)
    if siblings:
        raise InputError(f"there is no checkpoint {path}, and its run keeps {siblings} only; name one of them.")
    raise InputError(
        f"'{name}' is neither a weights file nor a model family, a run or a checkpoint: "
        f"{suggestion(name, [*WORLD_OF_FAMILY, *run_names()])}"
    )


def newest_average(run: Path) -> Path:
    """The file of the newest averaged weights that the run has published."""
    found = {
        int(version): path
        for path in (run / WEIGHTS).glob(f"{Policy.AVERAGE.value}-*.safetensors")
        if (version := path.stem.rpartition("-")[2]).isdecimal()
    }
    if not found:
        kept = ", ".join(path.name for path in sorted((run / CHECKPOINTS).glob("step_*"))) or "no checkpoint"
        raise InputError(
            f"the run {run} has published no averaged weights yet (it has {kept}), which are written with its first "
            "evaluation; let it go on, or name one of its checkpoints."
        )
    return found[max(found)]


def base_of(run: Path) -> Source:
    """The weights that a run trains from: its own copy, or those of a shipped family."""
    own = run / BASE
    name = str(own) if own.is_file() else str(run_settings(run, "model").get("name"))
    source = resolve(name)
    if source.kind is not SourceKind.FILE:
        raise WeightsError(
            f"the run {run} says that it trains from '{name}', which is no weights file, so its adapters have no base; "
            f"put its {BASE} back."
        )
    return source


def run_settings(run: Path, section: str) -> dict[str, Any]:
    """One section of the run's stored settings."""
    try:
        found = json.loads((run / CONFIG).read_text())[section]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(
            f"the settings of the run {run} cannot be read ({type(error).__name__}: {error}), but its weights are "
            f"adapters, whose base and rank are said there; put its {CONFIG} back."
        ) from error
    return found if isinstance(found, dict) else {}


def _run(name: str) -> Path | None:
    """A folder with settings alone may be a part of a model in diffusers layout."""
    run = find_run(name)
    parts: Sequence[str] = (JOURNAL, WEIGHTS, CHECKPOINTS)
    return run if run is not None and any((run / part).is_dir() for part in parts) else None


def _file(path: Path) -> Source:
    if not path.is_file() and path.name == BASE and _run(str(path.parent)) is not None:
        raise WeightsError(
            f"the run {path.parent} keeps the weights that it trains from in its {BASE}, which is gone; put the file "
            "back, or start a new run."
        )
    if not path.is_file() and (siblings := _kept(path)):
        raise WeightsError(
            f"the weights file {path} does not exist, and its run keeps {siblings} only, because older sets are "
            f"deleted as it goes on; name one of them, or the run."
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
    """What a run still has of the kind that this path would be, newest last."""
    if path.parent.name not in (WEIGHTS, CHECKPOINTS) or _run(str(path.parent.parent)) is None:
        return ""
    return ", ".join(sorted(other.name for other in path.parent.glob("*[0-9]*") if not other.name.endswith(".part")))


def _children(path: Path) -> str:
    """Sets, checkpoints and runs in the folder, the newest last."""
    found = [child for child in sorted(path.iterdir()) if child.suffix == ".safetensors" or is_checkpoint(child)]
    found += [child for child in sorted(path.iterdir()) if _run(str(child)) is not None]
    listed = ", ".join(str(child) for child in found[-3:])
    return f"one in it, for instance {listed}" if listed else ""


def _named(*parts: str) -> str:
    return hashlib.blake2b("|".join(parts).encode(), digest_size=16).hexdigest()


def _is_hub_id(name: str) -> bool:
    """`owner/name`; what lies in a local folder is a misspelt path, and asking the hub for it would only take long."""
    owner, slash, rest = name.partition("/")
    path_like = rest.endswith(".safetensors") or "/" in rest or owner in ("", ".", "..", "~") or Path(owner).is_dir()
    return bool(slash and rest) and not path_like
