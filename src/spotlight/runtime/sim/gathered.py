"""The disk of a simulated run: what is written is gathered, since a run of virtual hours is over in seconds.

Nobody resumes a simulation whose process was killed, so its journal need not be with the operating system record by
record, as a real one must. Invariant: after `sync` and after `close`, the file is what the journal wrote
(tests/unit/test_gathered.py).
"""

import os

from spotlight.core.journal import Disk

GATHERED = 1 << 16
"""Bytes that wait at most; less than the journal takes for a torn end, should the last of them not fit the disk."""


class Gathering:
    """One file at a time, which is all that a journal has open."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def disk(self) -> Disk:
        return Disk(write=self._write, sync=self._flush, close=self._close)

    def _write(self, handle: int, data: bytes | memoryview) -> int:
        self._waiting += data
        if len(self._waiting) > GATHERED:
            self._flush(handle)
        return len(data)

    def _flush(self, handle: int) -> None:
        rest = memoryview(self._waiting)
        self._waiting = bytearray()
        while rest:
            rest = rest[os.write(handle, rest) :]

    def _close(self, handle: int) -> None:
        try:
            self._flush(handle)
        finally:
            os.close(handle)
