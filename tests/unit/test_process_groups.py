"""When a killed process group counts as dead."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from spotlight.pools.processes import group_is_dead, kill_group


@pytest.fixture
def zombie() -> Iterator[subprocess.Popen[bytes]]:
    """A killed child of this process that leads a group and is not reaped."""
    with subprocess.Popen(["sleep", "3600"], process_group=0) as child:
        kill_group(child.pid)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        yield child


def test_killed_group_is_dead_once_its_parent_has_reaped_it(zombie, monkeypatch):
    async def reap(seconds: float) -> None:
        zombie.wait()

    monkeypatch.setattr(asyncio, "sleep", reap)
    asyncio.run(group_is_dead(zombie.pid, reaper=os.getpid()))
    assert zombie.returncode == -signal.SIGKILL


def test_killed_group_is_dead_although_another_process_has_not_reaped_it(zombie, monkeypatch):
    async def wait(seconds: float) -> None:
        raise AssertionError("waits for a zombie that init is to reap")

    monkeypatch.setattr(asyncio, "sleep", wait)
    asyncio.run(group_is_dead(zombie.pid, reaper=os.getppid()))
    assert zombie.returncode is None
