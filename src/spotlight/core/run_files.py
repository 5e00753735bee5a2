"""Names inside a run's folder, for code that has the path alone; `folder.py` shows the whole tree."""

import shlex
from pathlib import Path

CONFIG = "config.json"
JOURNAL = "journal"
WEIGHTS = "weights"
CHECKPOINTS = "checkpoints"
BASE = "base.safetensors"
BASE_FOLDER = "base"
"""Base model in diffusers layout."""
EMBEDDINGS = "embeddings"
"""The run's copy of the weights that it trains from; absent if they ship with the package."""
RUNS = "runs"
"""Default folder of all runs."""


def find_run(name: str, runs: str = RUNS) -> Path | None:
    """Return the folder of a run, given its path or its name below `runs`; None if there is no such run."""
    return next((path for path in (Path(name), Path(runs) / name) if is_file(path / CONFIG)), None)


def word_of(run: Path) -> str:
    """The run in a command of this working folder: its name, or its path where the name does not find it."""
    is_found = run.resolve().parent == Path(RUNS).resolve()
    return shlex.quote(run.name if is_found else str(run.resolve()))


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have, as one too long, is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def run_around(path: Path) -> Path | None:
    """Return the folder of the run that contains `path`, if any."""
    candidates = (folder for folder in (path, *path.parents) if (folder / CONFIG).is_file())
    return next((folder for folder in candidates if any((folder / JOURNAL).glob("segment-*"))), None)


def run_names(runs: str = RUNS) -> list[str]:
    return sorted(path.parent.name for path in Path(runs).glob(f"*/{CONFIG}"))
