"""What torch sees of this machine's GPUs, as one JSON object on stdout.

    python -m spotlight.node.device_probe

The controller runs it as a process of its own (`pools/devices.py`), because it never loads torch itself. torch
honours CUDA_VISIBLE_DEVICES, so its numbers are the ones that workers use. A build of torch without CUDA is known from
its version file, and torch, whose import takes seconds, is not loaded for it.
"""

import importlib.util
import json
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any


def seen() -> dict[str, Any]:
    """The build of torch, and name, model and memory in bytes of every CUDA device."""
    build = _build()
    if build["cuda"] is None:
        return {**build, "devices": [], "warnings": []}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        import torch

        devices = []
        for number in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(number)
            model = torch.cuda.get_device_name(number)
            devices.append({"name": f"cuda:{number}", "model": model, "free": free, "total": total})
    # A driver that is too old is no error to torch: it warns, and sees no device.
    return {**build, "devices": devices, "warnings": [" ".join(str(each.message).split()) for each in warned]}


def _build() -> dict[str, str | None]:
    """Version of torch, and of the CUDA (or ROCm, which torch calls by the same names) that it was built with."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ImportError("torch is not installed")
    version = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    return {"torch": version["__version__"], "cuda": version.get("cuda") or version.get("hip")}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(seen()))
