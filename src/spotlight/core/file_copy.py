"""A large file's bytes to another file by several threads at once, for one thread is slower than memory and network.

Invariant: the copy has every byte of the source, or an OSError is raised (tests/unit/test_file_copy.py). Room is
reserved before anything is written, so that a full disk is told as one before a page is touched that it has no room
for.
"""

import errno
import mmap
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

CHUNK = 16 << 20
THREADS = 8
WORTH_THREADS = 64 << 20
"""Bytes; less is copied sooner than threads are started."""
CANNOT_MAP = (errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
"""What file systems say that cannot reserve room, or cannot map a file to be written."""


def copy_file(source: Path, target: Path) -> None:
    """What was in `target` before is gone; if this raises, what is in it now is nothing to rely on."""
    size = source.stat().st_size
    if size < WORTH_THREADS:
        shutil.copyfile(source, target)
        return
    try:
        _copy_mapped(source, target, size)
    except OSError as problem:
        if problem.errno not in CANNOT_MAP:
            raise
        shutil.copyfile(source, target)


def _copy_mapped(source: Path, target: Path, size: int) -> None:
    with source.open("rb") as read, target.open("w+b") as written:
        _reserve(written.fileno(), size)
        # Threads end first, then what they have of the pages, then the pages.
        with (
            mmap.mmap(written.fileno(), size) as pages,
            memoryview(pages) as room,
            ThreadPoolExecutor(THREADS) as threads,
        ):
            list(threads.map(partial(_fill, room, read.fileno()), range(0, size, CHUNK)))


def _reserve(file: int, size: int) -> None:
    """The file has this size from now on, and room for it."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)


def _fill(room: memoryview, file: int, start: int) -> None:
    with room[start : start + CHUNK] as part:
        done = 0
        while done < len(part):
            with part[done:] as rest:
                read = os.preadv(file, [rest], start + done)
            if read == 0:
                raise OSError(f"it ends at byte {start + done}, though it was longer a moment ago")
            done += read
