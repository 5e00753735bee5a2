"""Section `output` of a recipe, and the folder of a run.

RUN/config.json            the resolved recipe
   /prompts.json           the prompts at the start of the run
   /base.safetensors       the base weights, unless they ship with the package
   /base/                  the base model in diffusers layout, if it was made for this run (random-tiny:FAMILY)
   /embeddings/            encoded prompts of the next iterations
   /journal/               all events
   /payloads/ITERATION/    tensors of accepted samples, until a checkpoint covers them
   /weights/               published weights that may still be needed
   /checkpoints/STEP/      the trainer's whole state
   /flights/               committed parts of unfinished samples; a resumed run continues from them
   /images/ITERATION/      evaluation pictures
   /logs/                  one file per process
   /trackers/              files of trackers, and how far each has read the journal
   /controller.json        the controller's process, while it runs
   /store/                 nodes' copies of weights that do not fit into shared memory, while the run lives
   /report.html
   /export/                files of `spotlight export`
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
from pydantic import Field, model_validator

from spotlight import __version__
from spotlight.core.errors import ConfigError, EnvironmentProblem, InputError, suggestion
from spotlight.core.journal import JournalConfig
from spotlight.core.run_files import (
    BASE,
    BASE_FOLDER,
    CHECKPOINTS,
    CONFIG,
    EMBEDDINGS,
    JOURNAL,
    RUNS,
    find_run,
    run_names,
    word_of,
)
from spotlight.core.run_version import WRITER
from spotlight.core.section import Section

if TYPE_CHECKING:
    from spotlight.compute.data.prompts import RunPrompts

CHECKPOINTS_KEPT = 2
NAME_BYTES = 200
NOT_A_NAME = re.compile(r"^$|^[.\s-]|/|\s$")
CHANGES_BITS = (
    "cluster.rows", "cluster.threads", "cluster.gang", "train.parallel", "train.sequence_ranks", "reward.terms.device",
    "reward.terms.batch",
)  # fmt: skip
"""Settings that select kernels or the order of sums: fixed in a deterministic run."""
FREE_TO_CHANGE = (
    "budget", "output", "cluster", "market", "iterations", "train.timeout_s", "train.parallel", "train.sequence_ranks",
    "reward.processes", "reward.timeout_s", "reward.folder", "reward.terms.processes", "reward.terms.timeout_s",
    "reward.terms.device", "reward.terms.batch",
)  # fmt: skip
"""Settings that a resumed run may change: they affect where, how long and at which cost, not what is computed."""


class TrackerKind(StrEnum):
    """A tracker; the name of its package, and of the extra that installs it."""

    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    TRACKIO = "trackio"


class OutputConfig(Section):
    """The files of a run."""

    folder: str = RUNS
    """Folder of all runs."""
    name: str | None = None
    """Name of this run; None takes the recipe's name and a number."""
    checkpoint_every: int = Field(default=5, ge=1)
    """Iterations between durable checkpoints; tensors of accepted samples are kept until one covers them."""
    trackers: tuple[TrackerKind, ...] = ()
    """Where else scores, figures, pictures and the bill go; the journal is always written."""
    project: str = Field(default="spotlight", pattern=r"^[A-Za-z0-9_.=-]{1,120}$")
    """Project of the run in a tracker that has projects."""
    journal: JournalConfig = JournalConfig()

    @model_validator(mode="after")
    def _name_is_a_name(self) -> Self:
        """A name becomes a folder, and is printed and passed to other commands."""
        name = self.name
        if name is not None and (
            NOT_A_NAME.search(name) or not name.isprintable() or len(name.encode(errors="replace")) > NAME_BYTES
        ):
            raise ConfigError(
                f"output.name is {name!r}, but a run's name is one folder's: 1 to {NAME_BYTES} bytes of printable text "
                "without / and not beginning with a dot, a dash or a space; choose another, and set output.folder for "
                "another place."
            )
        return self


class RunFolder:
    """Paths of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.name = self.path.name
        self.config = self.path / CONFIG
        self.prompts = self.path / "prompts.json"
        self.base = self.path / BASE
        self.base_folder = self.path / BASE_FOLDER
        self.embeddings = self.path / EMBEDDINGS
        self.journal = self.path / JOURNAL
        self.checkpoints = self.path / CHECKPOINTS
        self.report = self.path / "report.html"

    @classmethod
    def planned(cls, output: OutputConfig, recipe: str) -> "RunFolder":
        """The folder that `create` would make; refuses an existing one, because a run is never overwritten."""
        runs = Path(output.folder)
        if output.name is None:
            stem = Path(recipe).stem
            number = next(n for n in range(1, 10**6) if not (runs / f"{stem}-{n}").exists())
            path = runs / f"{stem}-{number}"
        else:
            path = runs / output.name
        if path.exists():
            raise InputError(
                f"the run folder {path} exists, and a run is never overwritten; resume it with `spotlight resume "
                f"{word_of(path)}`, or choose another output.name."
            )
        return cls(path)

    @classmethod
    def create(cls, output: OutputConfig, recipe: str) -> "RunFolder":
        folder = cls.planned(output, recipe)
        try:
            folder.path.mkdir(parents=True)
        except OSError as error:
            raise EnvironmentProblem(
                f"the run folder {folder.path} cannot be made ({error.strerror}); choose another output.folder."
            ) from error
        return folder

    @classmethod
    def find(cls, run: str, runs: str = RUNS) -> "RunFolder":
        """Find a run by path, or by name in the folder of all runs."""
        path = find_run(run, runs)
        if path is not None:
            return cls(path)
        known = run_names(runs)
        hint = suggestion(run, known) if known else f"there are no runs under {runs}/ yet; start one with train."
        raise InputError(f"there is no run '{run}': {hint}")

    @property
    def word(self) -> str:
        """The run in a command of this working folder."""
        return word_of(self.path)

    def write_config(self, settings: dict[str, Any]) -> None:
        """Store the settings, and the version of the package that writes them."""
        self.config.write_text(json.dumps({WRITER: __version__, **settings}, indent=2) + "\n")

    def read_config(self) -> dict[str, Any]:
        """The stored settings, with the present path of the run's own base weights: the folder may have been moved."""
        try:
            content: dict[str, Any] = json.loads(self.config.read_text())
            content.pop(WRITER, None)
            _check_shape(content)
            for own in (self.base, self.base_folder):
                content["model"].update({"name": str(own)} if own.exists() else {})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                f"the settings {self.config} cannot be read ({error}), so it is damaged or not a run's; put it back."
            ) from error
        return content

    def write_prompts(self, prompts: "RunPrompts") -> None:
        self.prompts.write_bytes(msgspec.json.encode(prompts))

    def read_prompts(self) -> "RunPrompts":
        # Not above: `status` reads no prompts, and the vocabularies of the tiny families load NumPy.
        from spotlight.compute.data.prompts import RunPrompts

        try:
            return msgspec.json.decode(self.prompts.read_bytes(), type=RunPrompts)
        except (OSError, msgspec.MsgspecError) as error:
            raise InputError(
                f"the prompts of the run {self.name} cannot be read from {self.prompts} ({error}), and others would "
                "not continue it; put that file back, or start a new run."
            ) from error

    def check_no_links(self) -> None:
        """Refuse links: a resumed run writes and deletes in its folders, and a link would redirect that."""
        for folder, folders, files in os.walk(self.path):
            for name in (*folders, *files):
                path = Path(folder, name)
                if path.is_symlink():
                    raise InputError(
                        f"{path} is a link to {os.readlink(path)}, and a resumed run would write or delete there; "
                        "put the files themselves in its place, or link the whole run folder."
                    )

    def keep_newest_checkpoints(self) -> None:
        found = sorted(path for path in self.checkpoints.glob("step_*") if not path.name.endswith(".part"))
        for old in found[:-CHECKPOINTS_KEPT]:
            shutil.rmtree(old)


def _check_shape(content: dict[str, Any]) -> None:
    """Refuse what no version has written: readers take the number of iterations and the sections as they are."""
    iterations = content.get("iterations")
    if type(iterations) is not int or not 0 < iterations < 2**53:
        raise ValueError("iterations is not a number of 1 or more")
    for section in ("model", "rollout", "train", "cluster", "market", "budget", "output"):
        if not isinstance(content.get(section, {}), dict):
            raise ValueError(f"{section} is not a section")


def config_digest(settings: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16).hexdigest()


def check_unchanged(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to resume with other settings; the error names every key that differs."""
    changed = [
        f"{key} ({_shown(old)} -> {_shown(new)})"
        for key, old, new in differences(before, now)
        if not _is_free(key) or (before["deterministic"] and key in CHANGES_BITS)
    ]
    if changed:
        raise ConfigError(
            f"this run was started with other settings: {', '.join(changed)}; a run cannot change what it computes, "
            f"so start a new run, or change only {', '.join(FREE_TO_CHANGE)}."
        )


def _is_free(key: str) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in FREE_TO_CHANGE)


def differences(before: Any, now: Any, path: str = "") -> Sequence[tuple[str, Any, Any]]:
    """Dotted keys of settings that differ, with the earlier and the present value."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            difference
            for key in sorted(before.keys() | now.keys())
            for difference in differences(before.get(key), now.get(key), f"{path}.{key}" if path else key)
        ]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        # A list of sections, such as reward.terms: its entries keep their places.
        pairs = zip(before, now, strict=True)
        if all(isinstance(each, dict) for each in (*before, *now)):
            return [difference for old, new in pairs for difference in differences(old, new, path)]
    return [] if before == now else [(path, before, now)]


def absent_keys(before: Any, now: Any, path: str = "") -> list[str]:
    """Dotted keys of settings that `before` lacks; a whole section counts as one."""
    if not isinstance(before, dict) or not isinstance(now, dict):
        return []
    keys = [(key, f"{path}.{key}" if path else key) for key in now]
    return [
        found
        for key, dotted in keys
        for found in (absent_keys(before[key], now[key], dotted) if key in before else [dotted])
    ]


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)
