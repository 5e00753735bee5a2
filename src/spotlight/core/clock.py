"""The only source of time. Durations are monotonic seconds; wall time is for display only."""

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic and wall time; the simulator's virtual clock jumps to the next event."""

    def now(self) -> float: ...

    def wall(self) -> float:
        """Seconds since 1970, for display."""


class RealClock:
    """This machine's clocks."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
