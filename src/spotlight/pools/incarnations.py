"""Counts the incarnations of every node of a run, in a file of the run's folder."""

import os
from pathlib import Path

import msgspec


class Incarnations:
    """Counted over restarts of the controller: a worker's id is never used twice."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def next(self, name: str) -> int:
        counts: dict[str, int] = msgspec.json.decode(self._path.read_bytes()) if self._path.exists() else {}
        counts[name] = counts.get(name, 0) + 1
        scratch = self._path.with_suffix(".part")
        scratch.write_bytes(msgspec.json.encode(counts))
        os.replace(scratch, self._path)
        return counts[name]
