"""The only door to time. Durations are monotonic seconds; wall time appears in records for people alone."""

import time
from typing import Protocol


class Clock(Protocol):
    """Tells seconds that never run backwards; the virtual one of the simulator jumps to the next event."""

    def now(self) -> float: ...

    def wall(self) -> float:
        """Seconds since 1970, for people."""


class RealClock:
    """This machine's clocks."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
