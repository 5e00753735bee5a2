"""Figures that one process measures for all processes of the run on this machine."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

Figure = TypeVar("Figure", int, str)


class MeasuredFigures(Generic[Figure]):
    """File of one device with its measured figures of one subject, by kind."""

    def __init__(self, folder: Path, subject: str, device: str, figure: type[Figure]) -> None:
        name = f"{subject}-{device.replace(':', '-')}"
        self._path = folder / f"{name}.json"
        self._lock = folder / f"{name}.lock"
        self._type: type[Figure] = figure

    def of(self, kind: str, measure: Callable[[], Figure]) -> Figure:
        """Return the figure for this kind; measure it if the file has none."""
        with self._lock.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = msgspec.json.decode(self._path.read_bytes()) if self._path.exists() else {}
            figures: dict[str, Figure] = msgspec.convert(known, dict[str, self._type])  # type: ignore[name-defined]
            if kind not in figures:
                figures[kind] = measure()
                scratch = self._path.with_suffix(".part")
                scratch.write_bytes(msgspec.json.encode(figures))
                os.replace(scratch, self._path)
            return figures[kind]
