"""Snapshots beside the journal: the state of projections after a record, so that a reader folds only later records.

Invariant: a snapshot is whole or absent (tests/unit/test_journal.py). A damaged one costs time, not correctness: the
previous one, or the journal from its start, gives the same state.
"""

import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from spotlight.core.events import SCHEMA

KEPT = 2
"""Number of snapshots kept: the newest, and one in case it is damaged."""


class Snapshot(msgspec.Struct, frozen=True):
    """The encoded state of each projection by name, after record `seq`."""

    seq: int
    parts: dict[str, bytes]
    schema: int = SCHEMA


def write_snapshot(folder: Path, seq: int, parts: Mapping[str, bytes]) -> Path:
    """Write a snapshot and delete all but the newest ones; the journal up to `seq` must already be durable."""
    payload = msgspec.msgpack.encode(Snapshot(seq, dict(parts)))
    path = folder / f"snapshot-{seq:012d}.msgpack"
    replace_file(path, zlib.crc32(payload).to_bytes(4, "little") + payload)
    for old in _newest_first(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def newest_snapshot(folder: Path) -> Snapshot | None:
    """Return the newest undamaged snapshot."""
    for path in _newest_first(folder):
        snapshot = _read(path)
        if snapshot is not None:
            return snapshot
    return None


def replace_file(path: Path, data: bytes) -> None:
    """Write a file atomically and durably: readers never see a half-written file, not even after a power loss."""
    partial = path.with_name(path.name + ".tmp")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("snapshot-*.msgpack"), reverse=True)


def _read(path: Path) -> Snapshot | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None  # A live run deletes old snapshots concurrently.
    payload = data[4:]
    if zlib.crc32(payload) != int.from_bytes(data[:4], "little"):
        return None
    try:
        snapshot = msgspec.msgpack.decode(payload, type=Snapshot)
    except msgspec.MsgspecError:
        return None
    return snapshot if snapshot.schema == SCHEMA else None
