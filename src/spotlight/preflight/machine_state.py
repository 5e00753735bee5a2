"""Examination of this machine for `spotlight doctor`: software, GPUs, memory, disk, ports; does not import torch.

Each finding is ok, a warning (a run works, but worse) or a problem (a run fails), with one sentence how to mend it.
"""

import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from spotlight.assets import DISTRIBUTION, REMEDY, altered, assets_root, digests
from spotlight.compute.memory.memory_plan import gib
from spotlight.compute.models.config import GPU_DRIVERS
from spotlight.core.errors import EnvironmentProblem
from spotlight.core.host_memory import host_memory
from spotlight.pools.devices import Devices, query
from spotlight.pools.machine import SHARED_MEMORY, sockets
from spotlight.preflight.this_machine import SOCKET_PATH_BYTES, nearest_folder

DRIVER = Path("/proc/driver/nvidia/version")
LEAST_DISK, LITTLE_DISK = 10**9, 20 * 10**9
LITTLE_SHARED_MEMORY = 2**30
"""Containers have 64 MiB by default."""
LITTLE_MEMORY = 4 * 2**30
FEW_FILES = 1024
BUSY_SHARE = 0.5
"""A GPU with less free memory than this share is in use by another program."""
EXTRAS = {"data": ("pyarrow", "datasets")}
"""Optional dependencies, by the name of the extra."""


class Health(StrEnum):
    """How a finding affects a run."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Examined(msgspec.Struct, frozen=True):
    """One line of the examination."""

    subject: str
    state: Health
    found: str
    mend: str = ""
    """One sentence what to do; empty if nothing."""


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """What is examined."""

    runs: Path = Path("runs")
    shared_memory: Path = SHARED_MEMORY
    usage: Callable[[Path], tuple[int, int, int]] = shutil.disk_usage
    """Total, used and free bytes of a file system."""
    devices: Callable[[], Devices] = query
    has_driver: Callable[[], bool] = lambda: any(Path(driver).exists() for driver in GPU_DRIVERS)
    port: int = 0
    """Loopback port to bind; 0: any."""
    assets: Callable[[], Path] = assets_root
    """Folder of the weights and OCR models."""


def examine(around: MachineFacts) -> Iterator[Examined]:
    """Findings in the order of a run's start."""
    yield Examined("python", Health.OK, f"{platform.python_version()} on {platform.system()} {platform.release()}")
    yield _assets(around)
    yield from _gpus(around)
    yield _cores()
    yield _host_memory()
    yield _shared_memory(around)
    yield _disk(around)
    yield _writable(around)
    yield _port(around)
    yield _unix_socket(around)
    yield _open_files()
    yield from (_extra(name, modules) for name, modules in EXTRAS.items())


def _assets(around: MachineFacts) -> Examined:
    """Weights and OCR models, by their digests."""
    try:
        root = around.assets()
    except EnvironmentProblem:
        return Examined("assets", Health.PROBLEM, f"{DISTRIBUTION} is not installed", REMEDY.capitalize())
    if wrong := altered(root):
        found = f"{', '.join(wrong)} in {root} is absent or not the expected file"
        return Examined("assets", Health.PROBLEM, found, REMEDY.capitalize())
    return Examined("assets", Health.OK, f"{len(digests())} files with the expected digests in {root}")


def _gpus(around: MachineFacts) -> Iterator[Examined]:
    """Torch, the driver, every GPU and NCCL."""
    try:
        found = around.devices()
    except EnvironmentProblem as error:
        yield Examined("torch", Health.PROBLEM, str(error).partition(";")[0], "Install torch again.")
        return
    has_driver = around.has_driver()
    if found.cuda is None and has_driver:
        build = "This machine has a GPU: install a CUDA build of torch, or set model.device=cpu."
        yield Examined("torch", Health.WARNING, f"{found.torch}, a build without CUDA", build)
    else:
        runtime = f", CUDA runtime {found.cuda}" if found.cuda else ", a build without CUDA"
        yield Examined("torch", Health.OK, f"{found.torch}{runtime}")
    yield _driver(found, has_driver)
    for each in found.devices:
        busy = each.free < BUSY_SHARE * each.total
        mend = "Another program uses it: see nvidia-smi, and end it or leave the GPU out." if busy else ""
        memory = f"{each.model}, {gib(each.free)} of {gib(each.total)} GiB free"
        yield Examined(each.name, Health.WARNING if busy else Health.OK, memory, mend)
    if len(found.devices) > 1:
        mend = "" if found.nccl else "Several GPUs train over NCCL: install a build of torch with it."
        yield Examined("nccl", Health.OK if found.nccl else Health.WARNING, found.nccl or "not in this torch", mend)


def _driver(found: Devices, has_driver: bool) -> Examined:
    if found.devices:
        return Examined("driver", Health.OK, _driver_version() or "its version is not readable")
    if not has_driver or found.cuda is None:
        return Examined("driver", Health.OK, "no GPU is used: runs compute on the CPU")
    reason = found.warnings[-1] if found.warnings else "torch finds no GPU, although there is a driver"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    mend = "Update the driver to one for this CUDA runtime, or set model.device=cpu."
    if visible is not None:
        mend = f"CUDA_VISIBLE_DEVICES is '{visible}': name the GPUs to use, or unset it."
    return Examined("driver", Health.PROBLEM, reason, mend)


def _driver_version() -> str | None:
    try:
        words = DRIVER.read_text().splitlines()[0].split()
    except (OSError, IndexError):
        return None
    return next((word for word in words if word[0].isdigit() and "." in word), None)


def _cores() -> Examined:
    count = len(os.sched_getaffinity(0))
    mend = "Rewards and workers compete for the core: give the machine or the container more." if count < 2 else ""
    return Examined("cores", Health.WARNING if count < 2 else Health.OK, f"{count} usable", mend)


def _host_memory() -> Examined:
    available, total = host_memory()
    if available is None or total is None:
        return Examined(
            "memory", Health.WARNING, "not readable", "Mount /proc, so that the memory plan can be checked."
        )
    is_little = available < LITTLE_MEMORY
    mend = "End other programs, or use fewer nodes." if is_little else ""
    found = f"{gib(available)} of {gib(total)} GiB available"
    return Examined("memory", Health.WARNING if is_little else Health.OK, found, mend)


def _shared_memory(around: MachineFacts) -> Examined:
    place = around.shared_memory
    if not os.access(place, os.W_OK | os.X_OK):
        mend = f"Weights then go to disk: mount a tmpfs at {place}, or set cluster.store."
        return Examined("shared memory", Health.WARNING, f"{place} is missing or not writable", mend)
    total, used, free = around.usage(place)
    is_little = free < LITTLE_SHARED_MEMORY
    mend = f"Weights then go to disk: enlarge {place} (docker run --shm-size=8g), or set cluster.store."
    found = f"{gib(used)} of {gib(total)} GiB used in {place}"
    return Examined("shared memory", Health.WARNING if is_little else Health.OK, found, mend if is_little else "")


def _disk(around: MachineFacts) -> Examined:
    place = nearest_folder(around.runs.resolve())
    free = around.usage(place)[2]
    state = Health.PROBLEM if free < LEAST_DISK else Health.WARNING if free < LITTLE_DISK else Health.OK
    mend = f"Free space in {place}, or set output.folder to another disk." if state is not Health.OK else ""
    return Examined("disk", state, f"{gib(free)} GiB free in {place}", mend)


def _writable(around: MachineFacts) -> Examined:
    place = nearest_folder(around.runs.resolve())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        mend = f"Make {place} writable, or set output.folder to another place."
        return Examined("run folder", Health.PROBLEM, f"{place} takes no files ({error.strerror})", mend)
    return Examined("run folder", Health.OK, f"{place} is writable")


def _port(around: MachineFacts) -> Examined:
    try:
        with socket.socket(socket.AF_INET) as sock:
            sock.bind(("127.0.0.1", around.port))
            number = sock.getsockname()[1]
    except OSError as error:
        mend = "Bring the loopback interface up (ip link set lo up), or end the program that holds the port."
        wanted = f"port {around.port}" if around.port else "no port"
        found = f"{wanted} of 127.0.0.1 cannot be bound" if around.port else "no port of 127.0.0.1 can be bound"
        return Examined("loopback", Health.PROBLEM, f"{found} ({error.strerror})", mend)
    return Examined("loopback", Health.OK, f"127.0.0.1 can be bound (port {number})")


def _unix_socket(around: MachineFacts) -> Examined:
    folder = sockets(around.runs / "a-run-of-this-machine-1")
    longest = len(os.fsencode(folder / "reserved-1000.groups"))
    place = nearest_folder(folder)
    if longest > SOCKET_PATH_BYTES:
        mend = "Mount a tmpfs at /dev/shm, or set TMPDIR to a shorter path."
        found = f"paths in {place} have {longest} bytes, but Linux takes {SOCKET_PATH_BYTES}"
        return Examined("unix sockets", Health.PROBLEM, found, mend)
    try:
        with tempfile.TemporaryDirectory(dir=place) as scratch, socket.socket(socket.AF_UNIX) as sock:
            sock.bind(f"{scratch}/s")
    except OSError as error:
        mend = f"Make {place} writable, or mount a tmpfs there."
        return Examined("unix sockets", Health.PROBLEM, f"none can be made in {place} ({error.strerror})", mend)
    return Examined("unix sockets", Health.OK, f"{longest} of {SOCKET_PATH_BYTES} bytes of a path in {place}")


def _open_files() -> Examined:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = ["unlimited" if limit == resource.RLIM_INFINITY else str(limit) for limit in (soft, hard)]
    is_few = resource.RLIM_INFINITY != hard < FEW_FILES
    mend = f"Many nodes need more: raise it with `ulimit -n {FEW_FILES}`." if is_few else ""
    state = Health.WARNING if is_few else Health.OK
    return Examined("open files", state, f"limit {shown[0]}, at most {shown[1]}", mend)


def _extra(name: str, modules: tuple[str, ...]) -> Examined:
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    if absent:
        mend = f"Only datasets and parquet files need it: pip install 'spotlight-rl[{name}]'."
        return Examined(f"extra {name}", Health.OK, f"{', '.join(absent)} not installed", mend)
    versions = ", ".join(f"{module} {importlib.metadata.version(module)}" for module in modules)
    return Examined(f"extra {name}", Health.OK, versions)
