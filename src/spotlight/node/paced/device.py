"""The device that a paced worker pretends to have: one thing at a time, each as long as the profile says.

The model's thread steps and trains while the outbox thread decodes. On a GPU their kernels queue; here their turns do,
in the order in which they came. Invariant: what is done in a turn takes its seconds or, where this machine is slower,
as long as it takes; turns never overlap (tests/unit/test_paced_parts.py).
"""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Done = TypeVar("Done")


class PacedDevice:
    """Waits for the turns before, and then for the time to pass."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._changed = threading.Condition()
        self._tickets = 0
        self._turn = 0

    def take(self, work: Callable[[], Done], seconds: Callable[[Done], float]) -> Done:
        """Do it, and be busy for as long as what came of it should have taken."""
        with self._changed:
            mine, self._tickets = self._tickets, self._tickets + 1
            self._changed.wait_for(lambda: self._turn == mine)
        try:
            began = self._clock()
            done = work()
            self._sleep(max(0.0, began + seconds(done) - self._clock()))
            return done
        finally:
            with self._changed:
                self._turn += 1
                self._changed.notify_all()
