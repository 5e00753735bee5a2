"""A manual clock, a disk that fails on demand, and small journals for the tests of the journal."""

import errno
import os
from pathlib import Path

from spotlight.core.events import Leased, Record
from spotlight.core.journal import Disk, Journal, JournalConfig, Sync
from spotlight.core.types import WorkerId
from spotlight.core.work import RequestId

CALM = JournalConfig(sync=Sync.NEVER)
SMALL = JournalConfig(sync=Sync.NEVER, segment_bytes=1024)


class HandClock:
    def __init__(self, start: float = 100.0) -> None:
        self.seconds = start

    def now(self) -> float:
        return self.seconds


class FussyDisk:
    """Counts syncs; accepts `room` bytes before it is full; its sync fails if `fails_sync`."""

    def __init__(self, room: int = 1 << 30, fails_sync: bool = False) -> None:
        self.room = room
        self.fails_sync = fails_sync
        self.syncs = 0

    def write(self, handle: int, data: bytes | memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = os.write(handle, data[: self.room])
        self.room -= written
        return written

    def sync(self, handle: int) -> None:
        self.syncs += 1
        if self.fails_sync:
            raise OSError(errno.EIO, "Input/output error")

    def disk(self) -> Disk:
        return Disk(self.write, self.sync)


def lease(number: int) -> Leased:
    return Leased(request=RequestId(f"rollout/0/0/{number}"), attempt=1, worker=WorkerId("spot-1.1/0.1"), step=number)


def write(folder: Path, count: int, config: JournalConfig = CALM) -> list[Record]:
    with Journal.create(folder, HandClock().now, config) as journal:
        return [journal.append(lease(number)) for number in range(count)]


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("segment-*.log"))
