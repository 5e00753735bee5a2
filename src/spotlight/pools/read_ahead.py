"""Reads a model's weights into the page cache while the workers' imports run.

A worker reads the weights after its imports, and a cold disk is idle during most of these. With weights read beside the
imports a new machine's start takes little more than the longer of both (benchmarks/cold_start/). The bytes are dropped:
a worker that loads meanwhile follows through the same cache.

Nothing is read that workers would not read, and nothing if the weights do not fit into the free memory, because they
would displace each other. A failure is no error: the worker that needs the file reports it.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from spotlight.compute.models.fetched import cached_hub_folder
from spotlight.compute.models.folder_facts import weight_files
from spotlight.core.errors import SpotlightError
from spotlight.core.host_memory import host_memory

BLOCK = 1 << 20
"""Bytes of one read: the small reads of imports wait for at most one of these per thread."""
READERS = 4
"""Threads; a disk of a virtual machine is slower with one read at a time (benchmarks/cold_start/)."""
WORTH = 1 << 30
"""Smallest size in bytes that is read ahead."""
MEMORY_SHARE = 0.8
"""Share of the available memory that the weights may fill."""
COMPONENTS = ("transformer", "vae")
"""Components that every worker loads; prompts are encoded once, by another process."""


class ReadAhead:
    """Threads that read the weights of a model; daemons, so that no process waits for them."""

    def __init__(self, model: str, readers: int = READERS) -> None:
        """`model`: a weights file, a folder in diffusers layout, or the name of a model in the hub's cache."""
        self._model = model
        self._readers = readers
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End at the next blocks; it may be called any number of times."""
        self._is_stopped.set()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        with suppress(OSError, SpotlightError):
            files = files_of(self._model)
            if is_worth_reading(files):
                for path in files:
                    self._read(path)

    def _read(self, path: Path) -> None:
        """Read one file, each block by the next thread that is free."""
        with path.open("rb", buffering=0) as file:
            # Otherwise the kernel would queue several blocks per thread, for which imports would wait.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            starts = iter(range(0, path.stat().st_size, BLOCK))
            arguments = (file.fileno(), starts, threading.Lock())
            readers = [
                threading.Thread(target=self._read_blocks, args=arguments, daemon=True) for _ in range(self._readers)
            ]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join()

    def _read_blocks(self, descriptor: int, starts: Iterator[int], lock: threading.Lock) -> None:
        room = bytearray(BLOCK)
        with suppress(OSError):
            while not self._is_stopped.is_set():
                with lock:
                    start = next(starts, None)
                if start is None:
                    return
                os.preadv(descriptor, [room], start)


def files_of(model: str) -> list[Path]:
    """The files that workers load of this model; none if it is not on this machine."""
    path = Path(model).expanduser()
    if path.is_file():
        return [path]
    is_hub_id = model.count("/") == 1
    folder = path if path.is_dir() else cached_hub_folder(model) if is_hub_id else None
    return [file for part in COMPONENTS for file in weight_files(folder / part)] if folder is not None else []


def is_worth_reading(files: Sequence[Path]) -> bool:
    size, available = sum(path.stat().st_size for path in files), host_memory()[0]
    return size >= WORTH and (available is None or size <= MEMORY_SHARE * available)
