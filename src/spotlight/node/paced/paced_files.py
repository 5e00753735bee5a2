"""Copies of weights to a node that take the profile's duration."""

import time
from collections.abc import Sequence
from pathlib import Path

from spotlight.core.blobs import BlobSource
from spotlight.node.weight_cache import Files


class PacedFiles:
    """Implements `Files`; each copy takes at least `seconds`."""

    def __init__(self, files: Files, seconds: float) -> None:
        self._files = files
        self._seconds = seconds

    def size(self, path: str) -> int:
        return self._files.size(path)

    def copy(self, path: str, target: Path, sources: Sequence[BlobSource]) -> None:
        ends = time.monotonic() + self._seconds
        self._files.copy(path, target, sources)
        time.sleep(max(0.0, ends - time.monotonic()))

    def drop(self, path: str) -> None:
        self._files.drop(path)
