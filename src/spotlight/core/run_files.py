"""Names inside a run's folder, for code that knows the folder and not the run; `folder.py` shows the whole tree."""

from pathlib import Path

CONFIG = "config.json"
JOURNAL = "journal"
WEIGHTS = "weights"
CHECKPOINTS = "checkpoints"
BASE = "base.safetensors"
"""The run's own copy of the weights that it trains from; absent where these ship with the package."""
RUNS = "runs"
"""Default folder of all runs."""


def find_run(name: str, runs: str = RUNS) -> Path | None:
    """The folder of a run by path, or by name below the folder of all runs; None where there is no such run."""
    return next((path for path in (Path(name), Path(runs) / name) if (path / CONFIG).is_file()), None)


def run_around(path: Path) -> Path | None:
    """The run whose folder a path is in, if it is in one."""
    around = (at for at in (path, *path.parents) if (at / CONFIG).is_file())
    return next((at for at in around if any((at / JOURNAL).glob("segment-*"))), None)


def run_names(runs: str = RUNS) -> list[str]:
    return sorted(path.parent.name for path in Path(runs).glob(f"*/{CONFIG}"))
