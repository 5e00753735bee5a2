"""Copy a large file with several threads; one thread is slower than memory and network.

Invariant: the copy has every byte of the source, or an OSError is raised (tests/unit/test_file_copy.py). Disk space is
reserved before the first write, so a full disk raises OSError instead of a fault in a mapped page.
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
"""Smallest size in bytes that is copied with threads."""
CANNOT_MAP = (errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
"""Error numbers of file systems that cannot reserve space or map a file for writing."""


def copy_file(source: Path, target: Path) -> None:
    """Copy `source` over `target`; the content of `target` is undefined if this raises."""
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
        # On exit the threads end first, then the view is released, then the mapping is closed.
        with (
            mmap.mmap(written.fileno(), size) as pages,
            memoryview(pages) as view,
            ThreadPoolExecutor(THREADS) as threads,
        ):
            list(threads.map(partial(_fill, view, read.fileno()), range(0, size, CHUNK)))


def _reserve(file: int, size: int) -> None:
    """Set the file's size and reserve its disk space."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)


def _fill(view: memoryview, file: int, start: int) -> None:
    with view[start : start + CHUNK] as part:
        done = 0
        while done < len(part):
            with part[done:] as rest:
                read = os.preadv(file, [rest], start + done)
            if read == 0:
                raise OSError(f"the source ends at byte {start + done}; it was truncated during the copy")
            done += read
