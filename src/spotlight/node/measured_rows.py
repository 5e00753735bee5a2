"""Rows that workers of this run have measured on one device, so that one that comes back need not measure again.

A file per device, since devices of one kind may have different amounts of memory free, in the folder that all processes
of a run share for as long as it runs: a resumed run measures anew, since another process may have come to the device
meanwhile. One worker measures at a time, because two on one device would measure each other; a worker that dies while
it measures gives the lock back, and the next one measures.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import msgspec


class MeasuredRows:
    """The file of one device."""

    def __init__(self, folder: Path, device: str) -> None:
        name = f"rows-{device.replace(':', '-')}"
        self._path = folder / f"{name}.json"
        self._lock = folder / f"{name}.lock"

    def of(self, kind: str, measure: Callable[[], int]) -> int:
        """What was measured for this kind of slot; measured now if nothing was."""
        with self._lock.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known: dict[str, int] = msgspec.json.decode(self._path.read_bytes()) if self._path.exists() else {}
            if kind not in known:
                known[kind] = measure()
                scratch = self._path.with_suffix(".part")
                scratch.write_bytes(msgspec.json.encode(known))
                os.replace(scratch, self._path)
            return known[kind]
