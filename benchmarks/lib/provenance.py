"""Provenance of every figure: commit, date, hardware."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict


class Provenance(TypedDict):
    commit: str
    date: str
    hardware: str


def provenance() -> Provenance:
    return Provenance(commit=_commit(), date=datetime.now(UTC).date().isoformat(), hardware=hardware())


def hardware() -> str:
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, {os.cpu_count()} CPU cores, torch {torch.__version__}"
    return f"{_cpu_name()}, {os.cpu_count()} cores, torch {torch.__version__}"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def _commit() -> str:
    """The commit, marked if the tree differs from it; SPOTLIGHT_COMMIT overrides it for a copied tree."""
    if handed_over := os.environ.get("SPOTLIGHT_COMMIT"):
        return handed_over
    root = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty" if dirty else commit
