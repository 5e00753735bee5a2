"""Fake GPUs: a stub of torch that the probe's process imports instead of the real one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

GIB = 2**30

VERSION = """
__version__ = "2.99.0+fake"
cuda = {cuda!r}
"""
STUB = """
import os
import warnings
from types import SimpleNamespace

from torch import version

if {warning!r}:
    warnings.warn({warning!r})

def _visible():
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return list(range({count})) if named is None else [int(each) for each in named.split(",") if each]

cuda = SimpleNamespace(
    device_count=lambda: len(_visible()),
    get_device_name=lambda number: f"Fake {{_visible()[number]}}" if {numbered!r} else "Fake",
    mem_get_info=lambda number: _broken() if {broken!r} else ({free}, {total}),
)

def _broken():
    raise RuntimeError({broken!r})
"""


@contextmanager
def fake_gpus(
    count: int, *, cuda: str | None = "99.9", free: float = 100.0, total: float = 140.0, warning: str = "",
    broken: str = "", numbered: bool = False,
) -> Iterator[None]:  # fmt: skip
    """Processes that start inside the block see `count` GPUs; `numbered` names each by its number."""
    with TemporaryDirectory() as folder:
        torch = Path(folder) / "torch"
        torch.mkdir()
        (torch / "version.py").write_text(VERSION.format(cuda=cuda))
        sizes = {"free": int(free * GIB), "total": int(total * GIB)}
        (torch / "__init__.py").write_text(
            STUB.format(count=count, warning=warning, broken=broken, numbered=numbered, **sizes)
        )
        before = os.environ.get("PYTHONPATH")
        path = folder if before is None else f"{folder}{os.pathsep}{before}"
        with mock.patch.dict(os.environ, {"PYTHONPATH": path}):
            yield
