"""Persistent incarnation numbers of nodes, and the end of whole process groups."""

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path

import msgspec


class Incarnations:
    """Counters that survive restarts of the controller, so that a worker's id is never used twice."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def next(self, name: str) -> int:
        counts: dict[str, int] = msgspec.json.decode(self._path.read_bytes()) if self._path.exists() else {}
        counts[name] = counts.get(name, 0) + 1
        scratch = self._path.with_suffix(".part")
        scratch.write_bytes(msgspec.json.encode(counts))
        os.replace(scratch, self._path)
        return counts[name]


REAP_S = 10.0
"""Time limit for killed processes to end; the kernel needs milliseconds."""


def kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is empty
        os.killpg(group, signal.SIGKILL)


async def group_is_dead(group: int, reaper: int | None) -> None:
    """Wait until the kernel has ended all processes of a killed group, and their parent `reaper` has reaped its own.

    Invariant (tests/unit/test_process_groups.py): a zombie child of `reaper` counts as alive, because it may have
    threads that still end and hold its memory. Other zombies do not: orphaned reward processes are reaped by init,
    which is slow in some containers.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REAP_S):
            while _has_members(group) and _remaining(group, reaper):
                await asyncio.sleep(0.005)


def _has_members(group: int) -> bool:
    """True if the group has processes, zombies included; signal 0 is harmless even if the number is reused."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _remaining(group: int, reaper: int | None) -> list[int]:
    """Processes of the group that run, and zombies that `reaper` is to reap."""
    remaining = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                state, parent, member_of = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:3]
                if int(member_of) == group and (state not in "ZX" or int(parent) == reaper):
                    remaining.append(int(entry))
    return remaining


def close_stdin(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(REAP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
