"""The journal: the append-only log of all that happened in a run. Resume, audit, status, report and cost read it.

Invariants (tests/unit/test_journal*.py): when `append` returns, the record is with the operating system, so a killed
process loses nothing (a simulation's disk gathers records first); events of `DURABLE` are on the disk besides, as the
sync policy says; a write that fails leaves no trace; records are numbered 0, 1, 2, ... without a gap; there is one
writer. The bytes are those of `segments.py`.

    with Journal.create(run / "journal", clock.now) as journal:
        journal.append(RunStarted(...))                                 # Record(seq=0, at=0.0, ...)
    journal = Journal.open(run / "journal", clock.now)                  # after a crash; cuts a torn tail
    ledger = Ledger.replay(r.event for r in read(run / "journal"))      # any process, any time
"""

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
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
"""What must survive a power loss. All else (leases, spans, ...) may go with it: the sample is simply made again."""


class Sync(StrEnum):
    """When durable events are forced to the disk. Whatever is chosen, a killed process loses nothing."""

    ALWAYS = "always"
    """Before `append` returns."""
    INTERVAL = "interval"
    """At most every `interval_s`: a power loss may cost that much."""
    NEVER = "never"
    """When the operating system likes: for tests and simulations."""


class JournalConfig(Section):
    """How the journal is written."""

    sync: Sync = Sync.INTERVAL
    interval_s: float = Field(default=1.0, gt=0)
    """Seconds between syncs under `interval`."""
    segment_bytes: int = Field(default=8 << 20, ge=1024)
    """A segment is closed before it grows beyond this."""


class JournalUnwritable(Stopped):
    """The disk is full or fails; what is in the journal is whole up to the last record there."""


@dataclass(frozen=True)
class Recovery:
    """What `Journal.open` found."""

    records: int
    torn_bytes: int
    """Cut from the end: a record that was being written when the machine or the process died."""
    last: Record | None


@dataclass(frozen=True)
class Disk:
    """The system calls on a segment; tests put failing ones here, a simulation ones that gather."""

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
        """Start a new one; `now` tells monotonic seconds."""
        folder.mkdir(parents=True, exist_ok=True)
        if list_segments(folder):
            raise InputError(
                f"{folder} holds a journal already; a run is started once; resume it or choose another name."
            )
        lock = _lock(folder)
        try:
            _make_segment(folder, 0, 0)
        except OSError as error:
            os.close(lock)
            raise JournalUnwritable(f"no journal can be made in {folder}: {error.strerror}; free the disk.") from error
        return cls(folder, now, config or JournalConfig(), disk or Disk(), Recovery(0, 0, None), lock)

    @classmethod
    def open(
        cls, folder: Path, now: Callable[[], float], config: JournalConfig | None = None, disk: Disk | None = None
    ) -> "Journal":
        """Go on with one, after checking every byte of it; run time goes on where the last record left it."""
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
        """Seconds of run time: what a record appended now would bear."""
        at = self._now() - self._origin
        return at if at > self._last_at else self._last_at

    def append(self, event: AnyEvent) -> Record:
        """Write one record, and sync it where the policy says so."""
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
        """Under `interval`: sync what has waited long enough. Call it now and then when nothing is appended."""
        if self._unsynced and self._config.sync is Sync.INTERVAL:
            self._sync_by_policy()

    def sync(self) -> None:
        """Force everything so far to the disk."""
        if not self._unsynced:
            return
        try:
            self._disk.sync(self._handle)
        except OSError as error:
            # The kernel may have dropped the pages and marked them clean: a second try would lie.
            self._failed = True
            raise self._unwritable(error) from error
        self._unsynced = False
        self._synced_at = self._now()

    def snapshot(self, parts: Mapping[str, bytes]) -> None:
        """Keep what projections have become after the last record; readers go on from there."""
        self.sync()
        try:
            write_snapshot(self.folder, self._next_seq - 1, parts)
        except OSError as error:
            raise self._unwritable(error) from error

    def close(self) -> None:
        """Sync and let go; closing twice is fine."""
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
            f"the journal in {self.folder} is closed or failed before; nothing more is written to it; "
            "resume the run to go on."
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
            # What it covers is deleted next, so it may not be lost.
            self.sync()
        elif kind in DURABLE:
            self._sync_by_policy()

    def _sync_by_policy(self) -> None:
        due = self._config.sync is Sync.INTERVAL and self._now() - self._synced_at >= self._config.interval_s
        if due or self._config.sync is Sync.ALWAYS:
            self.sync()

    def _cut_back(self) -> None:
        """Take a half-written record away. If even that fails, no more is written, and `open` will cut it."""
        try:
            if os.fstat(self._handle).st_size < self._size:
                # Records before it were gathered and are not there: nothing may follow the hole that they leave.
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
            # The new segment may be there already: a record added to the old one now would be missing before it.
            self._failed = True
            raise self._unwritable(error) from error
        self._disk.close(self._handle)
        self._handle, self._number, self._size = handle, self._number + 1, HEADER.size

    def _unwritable(self, error: OSError) -> JournalUnwritable:
        return JournalUnwritable(
            f"the journal in {self.folder} cannot be written (record {self._next_seq} is next): "
            f"{error.strerror or error}; the run stops here and can go on from the last record that is in the file; "
            "free or repair the disk and resume it."
        )


def read(folder: Path, after: int = -1) -> Iterator[Record]:
    """The records after number `after`, also of a run that is still writing: a sound prefix of it.

    Segments that end before are not opened, so a reader that goes on from a snapshot is quick however long the run is.
    """
    for segment in read_segments(folder, after + 1):
        for index in range(max(0, after + 1 - segment.first_seq), len(segment.offsets)):
            try:
                record = segment.record(index)
            except JournalCorrupt as error:
                raise with_checkpoint(folder, error) from error
            yield record


def _recover(folder: Path) -> Recovery:
    """Check everything, then cut what is torn off the end; raises before anything is changed."""
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


def _lock(folder: Path) -> int:
    """One writer at a time; the lock is the process's and goes with it, however it dies."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise InputError(
            f"the journal in {folder} is being written by another process; a run has one controller; stop that first."
        ) from error
    return handle
