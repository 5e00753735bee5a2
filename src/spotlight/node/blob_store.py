"""The store of a reserved node: files in the run's folder.

Agents on the same machine write and read its files themselves, so that no byte is copied twice. A finished sample is a
file of its own. Flights are many and short-lived, so each agent appends its workers' to one file after the other: to
create and delete a file for each would cost more than everything else about a commit. A file of flights is nothing but
their parts, so a restarted controller finds them there (`compute/rollout/stored_flights.py`).

Invariant (tests/unit/test_blob_store.py): `put` and `append` return after the bytes are in the file; `get` returns
exactly as many bytes as were stored there, or raises BlobError. Seals inside the bytes show whether they are damaged.
A file of flights never replaces another, and bytes that a full disk cut short are overwritten.
"""

import os
from pathlib import Path

from spotlight.compute.rollout.seal import seal_of
from spotlight.core.blobs import BlobKind, BlobRef, content_digest
from spotlight.core.errors import Stopped
from spotlight.node.unloading import BlobError

FLIGHT_FILE_BYTES = 16 << 20
"""A file of flights takes no more parts when it has grown to this size."""


class BlobStore:
    """Writes under one folder; `writer` names the files of flights, and differs from that of every other process."""

    def __init__(self, folder: Path, writer: str = "") -> None:
        self._folder = folder
        self._writer = writer
        self._files = 0
        """Number of the current file of flights."""
        self._file: int | None = None
        self._size = 0
        self._parts = 0

    def put(self, kind: BlobKind, name: str, data: bytes) -> BlobRef:
        """Store these bytes in a file; raises Stopped if the disk takes no more."""
        path = f"{kind.value}/{name}"
        try:
            file = self._created(path, os.O_TRUNC)
            try:
                _write(file, data, 0)
            finally:
                os.close(file)
        except OSError as error:
            raise self._full(path, data, error) from error
        return self.ref(kind, name, data)

    def ref(self, kind: BlobKind, name: str, data: bytes) -> BlobRef:
        """The reference to these bytes in a file of their own."""
        digest = content_digest(data) if kind is BlobKind.PICTURE else seal_of(data)
        return BlobRef(kind=kind, path=f"{kind.value}/{name}", digest=digest, size=len(data))

    def append(self, data: bytes) -> BlobRef:
        """Store a part of a flight; raises Stopped if the disk takes no more."""
        try:
            while self._file is None:
                try:
                    self._file = self._opened()
                except FileExistsError:
                    self._files += 1
            _write(self._file, data, self._size)
        except OSError as error:
            raise self._full(self._flight_path, data, error) from error
        path, offset = self._flight_path, self._size
        self._size, self._parts = self._size + len(data), self._parts + 1
        is_last, number = self._size >= FLIGHT_FILE_BYTES, self._parts
        if is_last:
            self.close()
            self._files, self._size, self._parts = self._files + 1, 0, 0
        return BlobRef(
            kind=BlobKind.FLIGHT, path=path, digest=seal_of(data), size=len(data), offset=offset, number=number,
            is_last=is_last,
        )  # fmt: skip

    def close(self) -> None:
        """Close the file of flights; the next part continues it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def get(self, ref: BlobRef) -> bytes:
        try:
            file = os.open(f"{self._folder}/{ref.path}", os.O_RDONLY)
            try:
                data = os.pread(file, ref.size, ref.offset)
            finally:
                os.close(file)
        except OSError as error:
            raise BlobError(f"{ref.path} cannot be read ({error.strerror}); the sample is made again.") from error
        if len(data) != ref.size:
            raise BlobError(f"{ref.path} has lost bytes from {ref.offset} on; the sample is made again.")
        return data

    @property
    def _flight_path(self) -> str:
        return f"{BlobKind.FLIGHT.value}/{self._writer}-{self._files}"

    def _opened(self) -> int:
        """The file of flights: a new one, or the one that was closed before it was full."""
        if self._size:
            try:
                return os.open(f"{self._folder}/{self._flight_path}", os.O_WRONLY)
            except FileNotFoundError:
                # Deleted: the controller has given this writer up.
                self._files, self._size, self._parts = self._files + 1, 0, 0
        return self._created(self._flight_path, os.O_EXCL)

    def _created(self, path: str, flag: int) -> int:
        whole, flags = f"{self._folder}/{path}", os.O_WRONLY | os.O_CREAT | flag
        try:
            return os.open(whole, flags, 0o644)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(whole), exist_ok=True)
            return os.open(whole, flags, 0o644)

    def _full(self, path: str, data: bytes, error: OSError) -> Stopped:
        return Stopped(
            f"{len(data)} bytes cannot be written to {self._folder}/{path} ({error.strerror}), so the run stops before "
            "anything is lost; free some space there, then `spotlight resume` goes on."
        )


def _write(file: int, data: bytes, offset: int) -> None:
    """The bytes count when a reference leads to them, or when their seal fits, so they are not written aside first."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, offset)
        rest, offset = rest[written:], offset + written
