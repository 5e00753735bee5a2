"""Simulated device of a paced worker: one operation at a time, each with the profile's duration.

The model's thread steps and trains while the sender thread decodes. On a GPU their kernels queue; here their operations
do, in the order of the calls. Invariant (tests/unit/test_paced_parts.py): an operation takes its duration, or longer
where this machine is slower; operations never overlap.
"""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Done = TypeVar("Done")


class PacedDevice:
    """Runs operations in order; each waits for the earlier ones, then for its own duration."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._changed = threading.Condition()
        self._tickets = 0
        self._serving = 0

    def take(self, work: Callable[[], Done], seconds: Callable[[Done], float]) -> Done:
        """Run `work` and occupy the device for `seconds` of its result."""
        with self._changed:
            ticket, self._tickets = self._tickets, self._tickets + 1
            self._changed.wait_for(lambda: self._serving == ticket)
        try:
            began = self._clock()
            done = work()
            self._sleep(max(0.0, began + seconds(done) - self._clock()))
            return done
        finally:
            with self._changed:
                self._serving += 1
                self._changed.notify_all()
