"""What a profile says of the machine and the code that it was measured with."""

import os
import platform
import subprocess
from pathlib import Path

import torch

from spotlight import __version__


def use_threads(count: int) -> None:
    """As many as a worker has."""
    torch.set_num_threads(count)


def use_tf32(wanted: bool) -> None:
    """As a worker does where its recipe says so."""
    torch.set_float32_matmul_precision("high" if wanted else "highest")


def hardware(device: torch.device) -> str:
    cores = f"{os.cpu_count()} CPU cores, torch {torch.__version__}"
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, {cores}"
    return f"{_processor()}, {cores}, {torch.get_num_threads()} used"


def busyness() -> str:
    """How many processes waited for the cores, so that a figure from a busy machine is not taken for a quiet one's."""
    return f"a load of {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the start"


def commit() -> str:
    """Of the source tree, handed over by variable where a copy of it runs; else the installed version."""
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
