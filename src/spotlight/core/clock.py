"""The only source of time. Durations are monotonic seconds; wall time is for display only."""

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Monotonic and wall time; the simulator's virtual clock jumps to the next event."""

    def now(self) -> float: ...

    def wall(self) -> float:
        """Seconds since 1970, for display."""


class Timer(Protocol):
    """A callback that is due later."""

    def cancel(self) -> None: ...


class Timers(Protocol):
    """Callbacks at monotonic times; asyncio's event loops are such, real or virtual."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer: ...

    def call_soon(self, callback: Callable[[], object]) -> object: ...


class RealClock:
    """This machine's clocks."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
