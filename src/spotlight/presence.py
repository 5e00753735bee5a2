"""The process that works on a run, and what it waits for: one small file in the run's folder, rewritten every second.

    RUN/controller.json   written by the controller while it lives, removed when it ends; left behind by a kill

A process counts as alive if its id and start time equal those in the file, so that a reused id does not count. For a
process on another machine the age of the file decides.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from spotlight.core.node_spec import NodeStanding

NAME = "controller.json"
EVERY_S = 1.0
OLD_S = 30.0
"""Age above which a file of another machine belongs to a dead controller."""


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """The controller's report on itself."""

    pid: int
    born: int
    """Start of the process, in the kernel's ticks since boot."""
    host: str
    wall: float
    is_draining: bool = False
    waiting_for: str = ""
    quiet_s: float = 0.0
    """Seconds since the last progress."""
    nodes: tuple[NodeStanding, ...] = ()

    @property
    def is_alive(self) -> bool:
        if self.host != socket.gethostname():
            return time.time() - self.wall < OLD_S
        return born_at(self.pid) == self.born


class Presence:
    """Writes the file; as a context manager, removes it at any end of the run."""

    def __init__(
        self,
        folder: Path,
        waiting_for: Callable[[], str],
        quiet_s: Callable[[], float],
        nodes: Callable[[], tuple[NodeStanding, ...]],
    ) -> None:
        self._path = folder / NAME
        self._waiting_for = waiting_for
        self._quiet_s = quiet_s
        self._nodes = nodes
        self.is_draining = False

    def __enter__(self) -> Self:
        self.write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    async def keep(self) -> None:
        # Not above: `status` reads the file without a loop.
        import asyncio

        while True:
            await asyncio.sleep(EVERY_S)
            self.write()

    def write(self) -> None:
        """Write the file; a full disk is ignored here, because the journal reports it."""
        beat = Beat(
            pid=os.getpid(),
            born=born_at(os.getpid()) or 0,
            host=socket.gethostname(),
            wall=time.time(),
            is_draining=self.is_draining,
            waiting_for=self._waiting_for(),
            quiet_s=self._quiet_s(),
            nodes=self._nodes(),
        )
        scratch = self._path.with_suffix(".part")
        with contextlib.suppress(OSError):
            scratch.write_bytes(msgspec.json.encode(beat))
            scratch.replace(self._path)


def read_beat(folder: Path) -> Beat | None:
    """None if no controller works on the run, or it ended in order."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=Beat)
    except (OSError, msgspec.MsgspecError):
        return None


def born_at(pid: int) -> int | None:
    """Start time of a process; None if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
