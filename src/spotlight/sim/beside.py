"""What a simulated worker does beside its other work: the thread that writes checkpoints in the product."""

import asyncio
from collections.abc import Awaitable, Callable

from spotlight.sim.moments import Struck


class Beside:
    """One thing at a time; a worker that is struck at it dies as a whole, and it dies with its worker.

    Invariant: nothing is done for a worker that is dead (tests/unit/test_sim_worker.py), and nothing of it is kept
    alive (tests/journeys/test_dead_machines.py), so tasks are known only while they last.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def begin(self, work: Callable[[], Awaitable[None]]) -> None:
        """Called by the worker itself."""
        life = asyncio.current_task()
        assert life is not None
        self._task = asyncio.create_task(self._guarded(work, life))

    async def ended(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _guarded(self, work: Callable[[], Awaitable[None]], life: asyncio.Task[None]) -> None:
        try:
            await work()
        except Struck:
            life.cancel()
        except Exception as error:
            # Nobody awaits this, and a fault of the simulation must not look like a slow disk.
            loop = asyncio.get_running_loop()
            loop.call_exception_handler({"message": "work beside a worker failed", "exception": error})
            life.cancel()
        finally:
            self._task = None
