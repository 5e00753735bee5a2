"""The journal: the append-only event log of a run. Resume, audit, status, report and cost read it.

Invariants (tests/unit/test_journal*.py):
- when `append` returns, the operating system has the record, so a killed process loses no record (a simulation's disk
  buffers records first);
- events of `DURABLE` are also synced to the disk, according to the sync policy;
- a failed write leaves no partial record; records are numbered 0, 1, 2, ... without a gap; there is one writer.
`segments.py` defines the bytes.

    with Journal.create(run / "journal", clock.now) as journal:
        journal.append(RunStarted(...))                                 # Record(seq=0, at=0.0, ...)
    journal = Journal.open(run / "journal", clock.now)                  # after a crash; cuts a torn tail
    ledger = Ledger.replay(r.event for r in read(run / "journal"))      # any process, any time
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType

import msgspec
from pydantic import Field

from spotlight.core.errors import InputError, Stopped
from spotlight.core.events import (
    Accepted,
    AnyEvent,
    Checkpointed,
    Compared,
    Issued,
    Published,
    Record,
    Restored,
    RunResumed,
    RunStarted,
    RunStopped,
    Selected,
    StepCommitted,
)
from spotlight.core.section import Section
from spotlight.core.segments import (
    HEADER,
    JournalCorrupt,
    list_segments,
    no_journal,
    pack_frame,
    pack_header,
    read_segments,
    segment_name,
    with_checkpoint,
)
from spotlight.core.snapshots import Snapshot, newest_snapshot, replace_file, write_snapshot

__all__ = ["DURABLE", "Journal", "JournalConfig", "JournalCorrupt", "JournalUnwritable", "Recovery", "Snapshot"]
__all__ += ["Sync", "newest_snapshot", "read"]

DURABLE: frozenset[type[object]] = frozenset(
    (
        RunStarted,
        RunResumed,
        RunStopped,
        Issued,
        Accepted,
        Selected,
        Compared,
        StepCommitted,
        Published,
        Checkpointed,
        Restored,
    )
)
"""Event types that must survive a power loss. Others (leases, spans, ...) may be lost: the sample is made again."""


class Sync(StrEnum):
    """When durable events are synced to the disk. A killed process loses no event under any policy."""

    ALWAYS = "always"
    """Before `append` returns."""
    INTERVAL = "interval"
    """At most every `interval_s`: a power loss may lose the events of that interval."""
    NEVER = "never"
    """At the operating system's discretion: for tests and simulations."""


class JournalConfig(Section):
    """Settings of the journal."""

    sync: Sync = Sync.INTERVAL
    interval_s: float = Field(default=1.0, gt=0)
    """Seconds between syncs under `interval`."""
    segment_bytes: int = Field(default=8 << 20, ge=1024)
    """Largest segment in bytes; the next record starts a new one."""


class JournalUnwritable(Stopped):
    """The disk is full or fails; the journal is complete up to its last record."""


@dataclass(frozen=True)
class Recovery:
    """Result of `Journal.open`."""

    records: int
    torn_bytes: int
    """Bytes cut from the end: a record that was being written when the machine or the process died."""
    last: Record | None


@dataclass(frozen=True)
class Disk:
    """The system calls on a segment; tests replace them by failing ones, a simulation by buffering ones."""

    write: Callable[[int, bytes | memoryview], int] = os.write
    sync: Callable[[int], None] = os.fdatasync
    close: Callable[[int], None] = os.close


class Journal:
    """The one writer of a run's journal."""

    def __init__(
        self, folder: Path, now: Callable[[], float], config: JournalConfig, disk: Disk, recovery: Recovery, lock: int
    ) -> None:
        """Use `create` or `open`."""
        self.folder = folder
        self.recovery = recovery
        self._now = now
        self._config = config
        self._disk = disk
        self._syncs = config.sync is not Sync.NEVER
        self._segment_bytes = config.segment_bytes
        self._encode = msgspec.msgpack.Encoder().encode
        self._next_seq = recovery.records
        self._last_at = recovery.last.at if recovery.last else 0.0
        self._origin = now() - self._last_at
        self._synced_at = now()
        self._unsynced = False
        self._failed = False
        self._lock = lock
        self._number = len(list_segments(folder)) - 1
        self._handle = os.open(folder / segment_name(self._number), os.O_WRONLY | os.O_APPEND)
        self._size = os.fstat(self._handle).st_size

    @classmethod
    def create(
        cls, folder: Path, now: Callable[[], float], config: JournalConfig | None = None, disk: Disk | None = None
    ) -> "Journal":
        """Create a new journal; `now` returns monotonic seconds."""
        folder.mkdir(parents=True, exist_ok=True)
        if list_segments(folder):
            raise InputError(
                f"{folder} holds a journal already, and a run is started only once; resume it or choose another name."
            )
        lock = _lock(folder)
        try:
            _make_segment(folder, 0, 0)
        except OSError as error:
            os.close(lock)
            raise JournalUnwritable(f"cannot create a journal in {folder}: {error.strerror}; free the disk.") from error
        return cls(folder, now, config or JournalConfig(), disk or Disk(), Recovery(0, 0, None), lock)

    @classmethod
    def open(
        cls, folder: Path, now: Callable[[], float], config: JournalConfig | None = None, disk: Disk | None = None
    ) -> "Journal":
        """Open a journal for appending after checking all of it; run time continues from the last record."""
        if not list_segments(folder):
            raise no_journal(folder)
        lock = _lock(folder)
        try:
            recovery = _recover(folder)
        except BaseException:
            os.close(lock)
            raise
        return cls(folder, now, config or JournalConfig(), disk or Disk(), recovery, lock)

    @property
    def next_seq(self) -> int:
        return self._next_seq

    def now(self) -> float:
        """Seconds of run time: the `at` of a record appended now."""
        at = self._now() - self._origin
        return at if at > self._last_at else self._last_at

    def append(self, event: AnyEvent) -> Record:
        """Write one record, and sync it if the policy requires it."""
        if self._failed or self._handle < 0:
            raise self._closed()
        at = self._now() - self._origin
        if at < self._last_at:
            at = self._last_at
        record = Record(self._next_seq, at, event)
        self._put(pack_frame(self._encode(record)), at)
        if self._syncs:
            self._sync_after(type(event))
        return record

    def tick(self) -> None:
        """Under `interval`, sync if the interval has passed. Call this periodically while nothing is appended."""
        if self._unsynced and self._config.sync is Sync.INTERVAL:
            self._sync_by_policy()

    def sync(self) -> None:
        """Sync all records so far to the disk."""
        if not self._unsynced:
            return
        try:
            self._disk.sync(self._handle)
        except OSError as error:
            # The kernel may have dropped the pages and marked them clean: a second sync would succeed wrongly.
            self._failed = True
            raise self._unwritable(error) from error
        self._unsynced = False
        self._synced_at = self._now()

    def snapshot(self, parts: Mapping[str, bytes]) -> None:
        """Store the state of projections after the last record; readers start from it."""
        self.sync()
        try:
            write_snapshot(self.folder, self._next_seq - 1, parts)
        except OSError as error:
            raise self._unwritable(error) from error

    def close(self) -> None:
        """Sync, close and unlock; closing twice has no effect."""
        if self._handle < 0:
            return
        try:
            if self._syncs and not self._failed:
                self.sync()
        finally:
            handle, self._handle = self._handle, -1
            try:
                self._disk.close(handle)
            except OSError as error:
                raise self._unwritable(error) from error
            finally:
                os.close(self._lock)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _closed(self) -> JournalUnwritable:
        return JournalUnwritable(
            f"the journal in {self.folder} is closed or failed before, so nothing more is written to it; "
            "resume the run to continue."
        )

    def _put(self, data: bytes, at: float) -> None:
        size = len(data)
        if self._size + size > self._segment_bytes and self._size > HEADER.size:
            self._rotate()
        write = self._disk.write
        try:
            done = write(self._handle, data)
            while done < size:
                done += write(self._handle, memoryview(data)[done:])
        except OSError as error:
            self._cut_back()
            raise self._unwritable(error) from error
        except BaseException:
            self._cut_back()
            raise
        self._size += size
        self._next_seq += 1
        self._last_at = at
        self._unsynced = True

    def _sync_after(self, kind: type[object]) -> None:
        if kind is Checkpointed:
            # The samples that it covers are deleted next, so it must be durable first.
            self.sync()
        elif kind in DURABLE:
            self._sync_by_policy()

    def _sync_by_policy(self) -> None:
        due = self._config.sync is Sync.INTERVAL and self._now() - self._synced_at >= self._config.interval_s
        if due or self._config.sync is Sync.ALWAYS:
            self.sync()

    def _cut_back(self) -> None:
        """Remove a half-written record. If that fails, no more is written, and `open` cuts it."""
        try:
            if os.fstat(self._handle).st_size < self._size:
                # Earlier records were buffered and are missing from the file: no record may follow this gap.
                self._failed = True
            else:
                os.ftruncate(self._handle, self._size)
        except OSError:
            self._failed = True

    def _rotate(self) -> None:
        self.sync()
        try:
            path = _make_segment(self.folder, self._number + 1, self._next_seq)
            handle = os.open(path, os.O_WRONLY | os.O_APPEND)
        except OSError as error:
            # The new segment may exist already: a record added to the old one now would break the numbering.
            self._failed = True
            raise self._unwritable(error) from error
        self._disk.close(self._handle)
        self._handle, self._number, self._size = handle, self._number + 1, HEADER.size

    def _unwritable(self, error: OSError) -> JournalUnwritable:
        return JournalUnwritable(
            f"the journal in {self.folder} cannot be written (record {self._next_seq} is next): "
            f"{error.strerror or error}; the run stops here and can continue from the last record in the file; "
            "free or repair the disk and resume the run."
        )


def read(folder: Path, after: int = -1) -> Iterator[Record]:
    """Yield the records after number `after`; of a live run, an undamaged prefix.

    Earlier segments are not opened, so the time to read on from a snapshot does not grow with the run.
    """
    for segment in read_segments(folder, after + 1):
        for index in range(max(0, after + 1 - segment.first_seq), len(segment.offsets)):
            try:
                record = segment.record(index)
            except JournalCorrupt as error:
                raise with_checkpoint(folder, error) from error
            yield record


def _recover(folder: Path) -> Recovery:
    """Check all segments, then cut a torn end; raises before it changes any file."""
    last = None
    for segment in read_segments(folder):
        if segment.offsets:
            last = segment.record(len(segment.offsets) - 1)
    for partial in folder.glob("*.tmp"):
        partial.unlink(missing_ok=True)
    if segment.torn_bytes:
        handle = os.open(segment.path, os.O_WRONLY)
        try:
            os.ftruncate(handle, segment.end)
            os.fsync(handle)
        finally:
            os.close(handle)
    return Recovery(segment.next_seq, segment.torn_bytes, last)


def _make_segment(folder: Path, number: int, first_seq: int) -> Path:
    path = folder / segment_name(number)
    replace_file(path, pack_header(first_seq))
    return path


@contextmanager
def without_writer(folder: Path) -> Iterator[None]:
    """Keep writers away meanwhile; raises if there is one."""
    handle = _lock(folder)
    try:
        yield
    finally:
        os.close(handle)


def _lock(folder: Path) -> int:
    """Lock the journal for one writer; the kernel releases the lock when the process ends in any way."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise InputError(
            f"another process writes the journal in {folder}, and a run has one controller; stop that process first."
        ) from error
    return handle
