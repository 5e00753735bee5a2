"""A profile's record of the machine and the code that it was measured with."""

import os
import platform
import subprocess
from pathlib import Path

import torch

from spotlight import __version__


def use_threads(count: int) -> None:
    """Set torch's thread count, as a worker does."""
    torch.set_num_threads(count)


def use_tf32(wanted: bool) -> None:
    """Set the precision of float32 products, as a worker does by its recipe."""
    torch.set_float32_matmul_precision("high" if wanted else "highest")


def hardware(device: torch.device) -> str:
    cores = f"{os.cpu_count()} CPU cores, torch {torch.__version__}"
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {cores}"
    return f"{_processor()}, {cores}, {torch.get_num_threads()} used"


def busyness() -> str:
    """Load average at the start, so that figures from a busy machine can be recognised."""
    return f"a load of {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the start"


def commit() -> str:
    """Commit of the source tree, from SPOTLIGHT_COMMIT for a copied tree; else the installed version."""
    if handed_over := os.environ.get("SPOTLIGHT_COMMIT"):
        return handed_over
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
        )
    except OSError:
        return f"version {__version__}"
    return found.stdout.strip() if found.returncode == 0 else f"version {__version__}"


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
