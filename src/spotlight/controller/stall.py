"""Detects that a run no longer progresses, warns, and stops it before it costs more.

    MOVING --half the bound without a sign of progress--> QUIET --the bound--> STALLED: the run stops, resumably
       ^----------------------- a sign --------------------'

A sign is an accepted sample, a committed or reported denoising step, loaded weights, or a reply of the gang. The bound
is what the settings allow a single operation to take without any sign (starting a worker; a heartbeat, which reports
steps; scoring, where samples are leased), and FACTOR times the longest time between two signs that this run has had. An
order to the gang has a limit of its own, which follows from the time of earlier ones (`gang.py`). While pictures wait
for an unavailable reward, no bound applies: the run waits for as long as the outage lasts.

Time is counted by ticks, at most LONGEST_TICK_S each, so that a pause of the controller is not blamed on its workers
(tests/unit/test_stall.py, tests/journeys/test_stalls.py; storms run it too).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from spotlight.core.errors import Stopped

FACTOR = 10
"""Multiple of the longest wait so far after which no more progress is expected."""
LONGEST_TICK_S = 2.0
"""Largest time that counts between two ticks: the rest was a pause of this process."""


class Movement(StrEnum):
    MOVING = "moving"
    QUIET = "quiet"
    STALLED = "stalled"


@dataclass(frozen=True)
class StallContext:
    """State of the run at a tick."""

    signs: int
    """Signs of progress since the controller started."""
    is_excused: bool
    """Whether the gang works on an order, which has a time limit, or pictures wait for an unavailable reward."""
    allowed_s: float
    """Seconds that the settings allow a single operation to take without a sign."""


class StallWatch:
    """Owned by the hub, which calls `tick`."""

    def __init__(
        self,
        look: Callable[[], StallContext],
        waits_for: Callable[[], str],
        note: Callable[[str, str], None],
        logs: str,
    ) -> None:
        """`note` journals a problem under a source; `logs` is the folder that an error names."""
        self._look = look
        self._waits_for = waits_for
        self._note = note
        self._logs = logs
        self.state = Movement.MOVING
        self.quiet_s = 0.0
        """Seconds since the last sign, or the last order to the gang."""
        self.since_sign_s = 0.0
        self.longest_s = 0.0
        """Longest seconds between two signs so far."""
        self._signs = 0
        self._ticked_at: float | None = None

    def tick(self, now: float) -> Stopped | None:
        """Return the reason to stop, once there is one."""
        elapsed = 0.0 if self._ticked_at is None else min(now - self._ticked_at, LONGEST_TICK_S)
        self._ticked_at = now
        context = self._look()
        self.since_sign_s += elapsed
        if context.signs != self._signs or context.is_excused:
            if context.signs != self._signs:
                self.longest_s = max(self.longest_s, self.quiet_s)
                self.since_sign_s = 0.0
            self._signs, self.quiet_s, self.state = context.signs, 0.0, Movement.MOVING
            return None
        self.quiet_s += elapsed
        bound = context.allowed_s + FACTOR * self.longest_s
        if self.quiet_s >= bound:
            self.state = Movement.STALLED
            return Stopped(f"{self._sentence()}, so the run stops; look at the logs in {self._logs}, then resume it.")
        if self.quiet_s >= bound / 2 and self.state is Movement.MOVING:
            self.state = Movement.QUIET
            self._note("controller", f"{self._sentence()}; the run stops if that goes on for {bound / 2:.0f} s more.")
        return None

    def _sentence(self) -> str:
        return (
            f"nothing has progressed for {self.quiet_s:.0f} s while the run waited for "
            f"{self._waits_for() or 'its next event'} (the longest wait before was {self.longest_s:.0f} s)"
        )
