"""Faults of the run's disk: crashes around a record, torn records, a full disk, files that a crash damages."""

import errno
import os
import random
from collections.abc import Callable
from typing import NoReturn

from spotlight.core.events import Compared, Evaluated, Issued, IterationDone, Planned, Published, Record, StepCommitted
from spotlight.core.journal import Disk
from spotlight.sim.controller import PowerCut
from spotlight.sim.faults import Fault, Storm
from spotlight.sim.storage import SimStorage

EDGES = (Planned, Issued, Compared, StepCommitted, Published, Evaluated, IterationDone)
"""Records that an iteration has few of: crashes after them are as frequent as they are rare."""


class FaultyDisk:
    """The controller's disk: crashes, torn records and a full disk at some records; one per life of the controller."""

    def __init__(self, storm: Storm, is_new: bool, unplug: Callable[[], None]) -> None:
        self._storm = storm
        self._unplug = unplug
        self._is_dead = False
        self._is_first = is_new
        """The first record of a run is always written: without it there is no run."""
        self.torn = b""
        """The part of a record that a crash wrote."""

    def disk(self) -> Disk:
        return Disk(write=self._write)

    def record_written(self, record: Record) -> None:
        """Observer: the process may die right after the record, before anything acts on it."""
        if self._storm.happens(Fault.CRASH_AFTER, 0.05 if isinstance(record.event, EDGES) else 0.005):
            self._die()

    def _write(self, handle: int, data: bytes | memoryview) -> int:
        if self._is_first:
            self._is_first = False
            return os.write(handle, data)
        if self._is_dead or self._storm.happens(Fault.CRASH_BEFORE, 0.005):
            self._die()
        if self._storm.happens(Fault.TORN, 0.005):
            self.torn = bytes(data[: 1 + len(data) // 2])
            self._die()
        if self._storm.happens(Fault.JOURNAL_FULL, 0.003):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(handle, data)

    def _die(self) -> NoReturn:
        """Disconnect at once: messages in transit are lost."""
        self._is_dead = True
        self._unplug()
        raise PowerCut


def damage_files(storm: Storm, storage: SimStorage, chance: random.Random) -> list[str]:
    """Lose or damage payload files, and parts of flights, after a crash; return their names."""
    damaged = []
    for kind, act in ((Fault.PAYLOAD_LOST, storage.lose), (Fault.PAYLOAD_DAMAGED, storage.damage)):
        names = [name for name in storage.payloads() if name not in damaged]
        if names and storm.happens(kind, 1.0):
            damaged.append(chance.choice(names))
            act(damaged[-1])
    for kind, act in (
        (Fault.FLIGHTS_LOST, storage.lose),
        (Fault.FLIGHTS_DAMAGED, storage.damage_flight),
        (Fault.FLIGHTS_CUT, storage.cut_flight),
    ):
        parts = [name for name in storage.flight_files() if name not in damaged]
        if parts and storm.happens(kind, 1.0):
            share = storm.stream("spoiled flights").uniform(0.1, 1.0)
            spoiled = [name for name in parts if storm.stream("spoiled flights").random() < share]
            damaged += spoiled
            for name in spoiled:
                act(name)
    return damaged
