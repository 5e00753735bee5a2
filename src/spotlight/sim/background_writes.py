"""Checkpoint writes of a simulated worker beside its other work; a thread in the product."""

import asyncio
from collections.abc import Awaitable, Callable

from spotlight.sim.crash_points import Crashed


class BackgroundWrites:
    """At most one write at a time; a crash in the write ends the worker, and the end of the worker ends the write.

    Invariant: nothing runs for a dead worker (tests/unit/test_sim_worker.py), and no reference keeps it alive
    (tests/journeys/test_dead_machines.py), so a task is referenced only while it runs.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start(self, write: Callable[[], Awaitable[None]]) -> None:
        """Call from the worker's own task."""
        worker = asyncio.current_task()
        assert worker is not None
        self._task = asyncio.create_task(self._guarded(write, worker))

    async def wait(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _guarded(self, write: Callable[[], Awaitable[None]], worker: asyncio.Task[None]) -> None:
        try:
            await write()
        except Crashed:
            worker.cancel()
        except Exception as error:
            # No task awaits this one, and a defect of the simulation must not look like a slow disk.
            loop = asyncio.get_running_loop()
            loop.call_exception_handler({"message": "a background write failed", "exception": error})
            worker.cancel()
        finally:
            self._task = None
