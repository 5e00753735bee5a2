"""Prints the GPUs that torch finds on this machine, as one JSON object on stdout.

    python -m spotlight.node.device_probe [--quick]

The controller never loads torch, so it runs this in a separate process (`pools/devices.py`). torch honours
CUDA_VISIBLE_DEVICES, so its device numbers are the ones that workers use. A build without CUDA is recognised by torch's
version file, without importing torch, which takes seconds. `--quick` asks the driver instead of torch, as far as it
replies, and leaves out NCCL.
"""

import argparse
import contextlib
import importlib.util
import json
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

from spotlight.node import cuda_driver
from spotlight.node.cuda_driver import DriverError


def seen(is_quick: bool) -> dict[str, Any]:
    """Return the build of torch, and name, model and memory in bytes of every CUDA device."""
    build, is_rocm = _build()
    if build["cuda"] is None:
        return {**build, "devices": [], "warnings": []}
    if is_quick and not is_rocm:
        with contextlib.suppress(DriverError):
            return {**build, "devices": cuda_driver.devices(build["cuda"]), "warnings": []}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        import torch

        devices = []
        for number in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(number)
            model = torch.cuda.get_device_name(number)
            devices.append({"name": f"cuda:{number}", "model": model, "free": free, "total": total})
    # With a driver that is too old torch raises no error: it warns and finds no device.
    found = {**build, "nccl": _nccl(torch.cuda), "devices": devices}
    return {**found, "warnings": [" ".join(str(each.message).split()) for each in warned]}


def _nccl(cuda: Any) -> str | None:
    """Version of the NCCL in torch's build; ROCm's torch calls RCCL so."""
    version = getattr(getattr(cuda, "nccl", None), "version", None)
    return ".".join(str(part) for part in version()) if version is not None else None


def _build() -> tuple[dict[str, str | None], bool]:
    """Version of torch and of the CUDA or ROCm that it was built with, and whether it is ROCm."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ImportError("torch is not installed")
    version = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    cuda, rocm = version.get("cuda"), version.get("hip")
    return {"torch": version["__version__"], "cuda": cuda or rocm}, not cuda and bool(rocm)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="ask the driver, without torch")
    sys.stdout.write(json.dumps(seen(parser.parse_args().quick)))
