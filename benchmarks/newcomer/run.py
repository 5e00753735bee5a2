"""Copies of weights on one GPU by fresh processes, one way after the other."""

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.lib.figures import Figure
from spotlight.compute.models.families import usable_device
from spotlight.compute.weights.upload import upload
from spotlight.core.types import Version
from spotlight.core.work import WeightsId
from spotlight.node.neighbours import Offer, offer, take

MEMORY = Path("/dev/shm")
TENSORS = 340
REPEATS = 3
CUDA = torch.device("cuda", 0)
WEIGHTS = WeightsId(Version(1))


def measure_all(gigabytes: float, folder: Path) -> tuple[dict[str, list[float]], str]:
    """Seconds of every way, and the location of the node's store."""
    usable_device(str(CUDA))
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        disk = Path(scratch) / "weights.safetensors"
        in_memory = shutil.disk_usage(MEMORY).free > 1.1e9 * gigabytes
        shared = MEMORY / "spotlight-newcomer.safetensors" if in_memory else disk
        try:
            seconds = measure(make(gigabytes, shared), shared, disk)
        finally:
            shared.unlink(missing_ok=True)
    return seconds, "shared memory" if in_memory else "page cache"


def make(gigabytes: float, shared: Path) -> dict[str, Tensor]:
    """Random weights on the device, and the same in shared memory."""
    count = int(gigabytes * 1e9 / 2 / TENSORS)
    held = {f"layer.{n}": torch.randn(count, device=CUDA).to(torch.bfloat16) for n in range(TENSORS)}
    save_file({name: tensor.cpu() for name, tensor in held.items()}, shared)
    return held


def measure(held: dict[str, Tensor], shared: Path, disk: Path) -> dict[str, list[float]]:
    """Seconds of every way, repeated; the slow ones once."""
    seconds: dict[str, list[float]] = {}
    expected = checksum(held)
    for way, source, repeats in (
        (from_neighbour, offer(WEIGHTS, "as made", held).to_bytes(), REPEATS),
        (from_store, str(shared).encode(), REPEATS),
        (from_store_registered, str(shared).encode(), REPEATS),
        (from_store_plain, str(shared).encode(), 1),
    ):
        seconds[way.__name__] = [newcomer(way, source, expected) for _ in range(repeats)]
        print(f"{way.__name__}: {seconds[way.__name__]}", file=sys.stderr)
    if shared != disk:
        shutil.copyfile(shared, disk)
    drop_cached(disk)
    seconds["from_disk"] = [newcomer(from_disk, str(disk).encode(), expected)]
    print(f"from_disk: {seconds['from_disk']}", file=sys.stderr)
    forming, aborting = zip(*(nccl() for _ in range(REPEATS)), strict=True)
    seconds |= {"nccl_form_1_rank": list(forming), "nccl_abort_1_rank": list(aborting)}
    return seconds


def newcomer(way: Callable[[bytes], dict[str, Tensor]], source: bytes, expected: float) -> float:
    """Seconds of one way in a fresh process, after a check of its tensors."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=arrive, args=(there, way, source))
    process.start()
    taken, found = here.recv()
    here.send(None)
    process.join()
    if abs(found - expected) > 1e-6 * abs(expected):
        sys.exit(f"newcomer: {way.__name__} brought weights whose sum is {found}, not {expected}; they were altered.")
    return float(taken)


def arrive(pipe: Connection, way: Callable[[bytes], dict[str, Tensor]], source: bytes) -> None:
    torch.zeros(1, device=CUDA)
    torch.cuda.synchronize()
    began = time.perf_counter()
    tensors = way(source)
    torch.cuda.synchronize()
    taken = time.perf_counter() - began
    pipe.send((taken, checksum(tensors)))
    pipe.recv()


def from_neighbour(source: bytes) -> dict[str, Tensor]:
    return take(Offer.from_bytes(source), CUDA)


def from_store(source: bytes) -> dict[str, Tensor]:
    return upload(mapped(source), CUDA)


def from_store_plain(source: bytes) -> dict[str, Tensor]:
    return {name: tensor.to(CUDA) for name, tensor in mapped(source).items()}


def from_store_registered(source: bytes) -> dict[str, Tensor]:
    path = source.decode()
    size = os.path.getsize(path)
    pages = torch.UntypedStorage.from_file(path, True, size)
    cudart = torch.cuda.cudart()
    assert int(cudart.cudaHostRegister(pages.data_ptr(), size, 0)) == 0
    first = torch.tensor([], dtype=torch.uint8).set_(pages)  # type: ignore[arg-type]
    arrived = {"all": torch.empty(size, dtype=torch.uint8, device=CUDA).copy_(first, non_blocking=True)}
    torch.cuda.synchronize()
    cudart.cudaHostUnregister(pages.data_ptr())
    header = 8 + int.from_bytes(bytes(first[:8].tolist()), "little")
    return {"all": arrived["all"][header:].view(torch.bfloat16)}


def from_disk(source: bytes) -> dict[str, Tensor]:
    return load_file(source.decode(), device=str(CUDA))


def mapped(source: bytes) -> dict[str, Tensor]:
    with safe_open(source.decode(), framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def checksum(tensors: dict[str, Tensor]) -> float:
    return sum(
        float(tensor.double().abs().sum()) if tensor.numel() < 1 << 28 else _in_parts(tensor)
        for tensor in tensors.values()
    )


def _in_parts(tensor: Tensor) -> float:
    return sum(float(part.double().abs().sum()) for part in tensor.split(1 << 27))


def drop_cached(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def nccl() -> tuple[float, float]:
    """Seconds to form a communicator of one rank up to its first operation, and to abort it."""
    import torch.distributed as dist

    began = time.perf_counter()
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=60)
    group = dist.ProcessGroupNCCL(dist.HashStore(), 0, 1, options)  # type: ignore[attr-defined]
    group.allreduce([torch.ones(1, device=CUDA)]).wait()  # type: ignore[attr-defined]
    torch.cuda.synchronize()
    formed = time.perf_counter()
    group.abort()
    return formed - began, time.perf_counter() - formed


def figures_of(seconds: dict[str, list[float]]) -> dict[str, Figure]:
    figures = {f"{name}_s": Figure.median(values, "s") for name, values in seconds.items()}
    disk = seconds["from_disk"][0]
    for name in ("from_neighbour", "from_store"):
        ratios = [disk / value for value in seconds[name]]
        figures[f"{name}_speedup"] = Figure.median(ratios, "times faster than disk")
    return figures
