"""Starts of workers whose imports and weights are on a cold disk."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.lib.figures import Figure
from spotlight.compute.models.families import usable_device
from spotlight.core.errors import EnvironmentProblem
from spotlight.pools.read_ahead import ReadAhead, is_worth_reading

TENSORS = 340
READERS = (1, 4)
CUDA = torch.device("cuda", 0)
CACHES = Path("/proc/sys/vm/drop_caches")
IMPORTS = """
import sys
from spotlight.compute.profiling.start import main
main("qwen-image", "cuda:0")
"""
"""A worker's imports, and its device."""
WEIGHTS = """
import torch
from safetensors.torch import load_file
from spotlight.compute.weights.upload import upload
held = upload(load_file(sys.argv[1]), torch.device("cuda", 0))
torch.cuda.synchronize()
"""
WAYS = {"imports": (IMPORTS, False), "start": (IMPORTS + WEIGHTS, False), "start_read_ahead": (IMPORTS + WEIGHTS, True)}
"""Program of each way, and whether its machine reads ahead."""


def measure(gigabytes: float, folder: Path, rounds: int) -> dict[str, Figure]:
    usable_device(str(CUDA))
    if not os.access(CACHES, os.W_OK):
        raise EnvironmentProblem(f"The page cache cannot be emptied, because {CACHES} is not writable; run as root.")
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        weights = Path(scratch) / "weights.safetensors"
        _write(gigabytes, weights)
        if not is_worth_reading([weights]):
            raise EnvironmentProblem(
                f"A machine would not read {gigabytes:g} GB ahead: it reads at least 1 GiB, and at most what fits into "
                "the free memory; choose another --gigabytes, or free memory."
            )
        for readers in READERS:
            seconds[f"read_by_{readers}"] = [_read(weights, readers)]
        for _ in range(rounds):
            for way, (program, reads_ahead) in WAYS.items():
                seconds[way].append(_started(program, weights, reads_ahead))
                print(seconds, file=sys.stderr)
    return figures_of(seconds)


def figures_of(seconds: dict[str, list[float]]) -> dict[str, Figure]:
    shares = [ahead / plain for plain, ahead in zip(seconds["start"], seconds["start_read_ahead"], strict=True)]
    figures = {f"{way}_s": Figure.median(values, "s") for way, values in seconds.items()}
    return figures | {"read_ahead_vs_start": Figure.median(shares, "of the start without reading ahead")}


def _write(gigabytes: float, path: Path) -> None:
    count = int(gigabytes * 1e9 / 2 / TENSORS)
    save_file({f"layer.{n}": torch.randn(count, device=CUDA).to(torch.bfloat16).cpu() for n in range(TENSORS)}, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _read(weights: Path, readers: int) -> float:
    """Seconds to read the file alone, from a cold disk, by this many threads."""
    CACHES.write_text("1")
    ahead = ReadAhead(str(weights), readers)
    began = time.perf_counter()
    ahead.begin()
    ahead.join()
    return time.perf_counter() - began


def _started(program: str, weights: Path, reads_ahead: bool) -> float:
    """Seconds of the program, from a cold disk."""
    CACHES.write_text("1")
    ahead = ReadAhead(str(weights))
    began = time.perf_counter()
    if reads_ahead:
        ahead.begin()
    subprocess.run([sys.executable, "-c", program, str(weights)], check=True)
    elapsed = time.perf_counter() - began
    ahead.stop()
    return elapsed
