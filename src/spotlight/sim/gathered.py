"""The disk of a simulated run: what is written is gathered, since a run of virtual hours is over in seconds.

Nobody resumes a simulation whose process was killed, so its journal need not be with the operating system record by
record, as a real one must. Invariant: after `sync` and after `close`, the file is what the journal wrote; where a
write fails or is interrupted, it is the beginning of that, and nothing follows (tests/unit/test_gathered.py).
"""

import errno
import os

from spotlight.core.journal import Disk

GATHERED = 1 << 16
"""Bytes that wait at most between two writes; a disk that fails takes them and the record that was to follow."""


class Gathering:
    """One file at a time, which is all that a journal has open."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._is_torn = False
        """Not all of what was gathered is in the file."""

    def disk(self) -> Disk:
        return Disk(write=self._write, sync=self._flush, close=self._close)

    def _write(self, handle: int, data: bytes | memoryview) -> int:
        before = len(self._waiting)
        try:
            self._waiting += data
            if len(self._waiting) > GATHERED:
                self._flush(handle)
        except BaseException:
            # The journal takes this record for not written, and may write another of its number.
            self._waiting = self._waiting[:before]
            raise
        return len(data)

    def _flush(self, handle: int) -> None:
        if not self._waiting:
            return
        if self._is_torn:
            raise OSError(errno.EIO, "an earlier write was not finished")
        self._is_torn = True
        rest, self._waiting = memoryview(self._waiting), bytearray()
        while rest:
            rest = rest[os.write(handle, rest) :]
        self._is_torn = False

    def _close(self, handle: int) -> None:
        try:
            self._flush(handle)
        finally:
            os.close(handle)
