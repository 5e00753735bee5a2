"""The store of a reserved node: files in the run's folder.

Agents and workers on the same machine write and read its files themselves, so that no byte is copied twice. Flights are
many and short-lived, so each writer appends them to one file after the other, those of one step in one call: to create
and delete a file for each would cost more than everything else about a commit. A file of flights is nothing but their
parts, so a restarted controller finds them there (`compute/rollout/stored_flights.py`). Workers append finished samples
in the same way, to files of their iteration; what comes from other machines, and every picture, is a file of its own.

One thread may append flights while another appends samples: they share no file.

Invariant (tests/unit/test_blob_store.py): `put` and the appends return after the bytes are in the file; `get` returns
exactly as many bytes as were stored there, or raises BlobError. Seals inside the bytes show whether they are damaged.
A file of several blobs never replaces another, and bytes that a full disk cut short are overwritten.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from spotlight.compute.rollout.seal import seal_of
from spotlight.core.blobs import BlobKind, BlobRef, content_digest, writer_files
from spotlight.core.errors import Stopped
from spotlight.node.unloading import BlobError

SHARED_FILE_BYTES = 16 << 20
"""A file of several blobs takes no more when it has grown to this size."""
MOST_VIEWS = 1024
"""Buffers that Linux takes in one call."""


class BlobStore:
    """Writes under one folder; the writer's name, which no other process has, is in those of its shared files."""

    def __init__(self, folder: Path, writer: str = "") -> None:
        self._folder = folder
        self._writer = writer
        self._flights = _BlobFiles(folder, BlobKind.FLIGHT, writer_files(writer))
        self._samples: dict[int, _BlobFiles] = {}
        """Files by iteration, of at most two: samples of one finish while those of the next begin."""

    def put(self, kind: BlobKind, name: str, data: bytes) -> BlobRef:
        """Store these bytes in a file of their own; raises Stopped if the disk takes no more."""
        path = f"{kind.value}/{name}"
        try:
            file = _created(f"{self._folder}/{path}", os.O_TRUNC)
            try:
                _write(file, [data], 0)
            finally:
                os.close(file)
        except OSError as error:
            raise _full(f"{self._folder}/{path}", len(data), error) from error
        return self.ref(kind, name, data)

    def ref(self, kind: BlobKind, name: str, data: bytes) -> BlobRef:
        """The reference to these bytes in a file of their own."""
        digest = content_digest(data) if kind is BlobKind.PICTURE else seal_of(data)
        return BlobRef(kind=kind, path=f"{kind.value}/{name}", digest=digest, size=len(data))

    def append(self, data: bytes) -> BlobRef:
        """Store a part of a flight; raises Stopped if the disk takes no more."""
        return self._flights.append([data])[0]

    def append_all(self, parts: Sequence[bytes]) -> list[BlobRef]:
        """Store parts of flights, all or none; raises Stopped if the disk takes no more."""
        return self._flights.append(parts)

    def append_sample(self, iteration: int, data: bytes) -> BlobRef:
        """Store the tensors of a finished sample; raises Stopped if the disk takes no more."""
        if iteration not in self._samples:
            if len(self._samples) == 2:
                self._samples.pop(min(self._samples)).close()
            files = _BlobFiles(self._folder, BlobKind.PAYLOAD, writer_files(self._writer, iteration))
            self._samples[iteration] = files
        return self._samples[iteration].append([data])[0]

    def close(self) -> None:
        """Close the file of flights; the next part continues it."""
        self._flights.close()

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


class _BlobFiles:
    """One file after the other, each with several blobs; their paths begin with `begin`."""

    def __init__(self, folder: Path, kind: BlobKind, begin: str) -> None:
        self._folder = folder
        self._kind = kind
        self._begin = begin
        self._number = 0
        """Number of the current file."""
        self._file: int | None = None
        self._size = 0
        self._count = 0

    def append(self, blobs: Sequence[bytes]) -> list[BlobRef]:
        try:
            while self._file is None:
                try:
                    self._file = self._opened()
                except FileExistsError:
                    self._number += 1
            _write(self._file, blobs, self._size)
        except OSError as error:
            raise _full(f"{self._folder}/{self._path}", sum(map(len, blobs)), error) from error
        path, refs = self._path, []
        for data in blobs:
            self._count += 1
            refs.append(BlobRef(self._kind, path, seal_of(data), len(data), self._size, self._count))
            self._size += len(data)
        if self._size >= SHARED_FILE_BYTES:
            refs[-1] = msgspec.structs.replace(refs[-1], is_last=True)
            self.close()
            self._next()
        return refs

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @property
    def _path(self) -> str:
        return f"{self._begin}{self._number}"

    def _next(self) -> None:
        self._number, self._size, self._count = self._number + 1, 0, 0

    def _opened(self) -> int:
        """The file: a new one, or the one that was closed before it was full."""
        if self._size:
            try:
                return os.open(f"{self._folder}/{self._path}", os.O_WRONLY)
            except FileNotFoundError:
                # Deleted: the controller has given this writer up.
                self._next()
        return _created(f"{self._folder}/{self._path}", os.O_EXCL)


def _created(path: str, flag: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | flag
    try:
        return os.open(path, flags, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o644)


def _full(path: str, size: int, error: OSError) -> Stopped:
    return Stopped(
        f"{size} bytes cannot be written to {path} ({error.strerror}), so the run stops before anything is lost; free "
        "some space there, then `spotlight resume` goes on."
    )


def _write(file: int, parts: Sequence[bytes], offset: int) -> None:
    """The bytes count when a reference leads to them, or when their seal fits, so they are not written aside first."""
    rest = [memoryview(part) for part in parts if part]
    while rest:
        written = os.pwritev(file, rest[:MOST_VIEWS], offset)
        offset += written
        while rest and written >= len(rest[0]):
            written -= len(rest.pop(0))
        if written:
            rest[0] = rest[0][written:]
