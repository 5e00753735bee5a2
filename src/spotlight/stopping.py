"""Stops of a live run, by a signal or from another terminal; each is bounded and resumable.

    RUNNING --SIGINT, SIGTERM, `spotlight drain`--> DRAINING --the iteration ends--> stopped, with a checkpoint
                                                       `--a second signal, or the bound--> stopped at once

The bound of a drain is twice the longest iteration so far plus the start of a worker. A run that is stopped at once
loses no accepted sample: they are on disk until a checkpoint covers them (tests/processes/test_stopping.py).
"""

import asyncio
import signal
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self

from spotlight.budget import Budget
from spotlight.core.errors import StopRequested
from spotlight.presence import Presence

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Context manager around a run's life, entered by the task that runs it."""

    def __init__(
        self,
        name: str,
        budget: Budget,
        presence: Presence,
        bound_s: Callable[[], float],
        fail: Callable[[StopRequested], None],
    ) -> None:
        """`fail` ends every wait of the loop; before `started`, the task itself is cancelled."""
        self._name = name
        self._budget = budget
        self._presence = presence
        self._bound_s = bound_s
        self._fail = fail
        self._starting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.stopped: StopRequested | None = None
        """Set if the run was stopped at once."""

    def __enter__(self) -> Self:
        self._starting = asyncio.current_task()
        for which in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(which, self._signalled)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for which in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(which)
        if self._timer is not None:
            self._timer.cancel()

    def started(self) -> None:
        """From now on every wait is in the hub."""
        self._starting = None

    def drain(self) -> float:
        """Stop at the end of the iteration; return the seconds after which the run is stopped at once."""
        seconds = self._bound_s()
        if self._timer is None:
            self._budget.drain_asked = self._presence.is_draining = True
            self._presence.write()
            why = f"stopped at once, because its iteration had not ended {seconds:.0f} s after it was asked to stop"
            self._timer = asyncio.get_running_loop().call_later(seconds, self.at_once, why)
        return seconds

    def at_once(self, why: str) -> None:
        self.stopped = self.stopped or StopRequested(f"{why}; `spotlight resume {self._name}` continues it.")
        self._fail(self.stopped)
        if self._starting is not None:
            self._starting.cancel()

    def _signalled(self) -> None:
        if self._timer is not None:
            self.at_once("stopped at once")
            return
        seconds = self.drain()
        sys.stderr.write(
            f"stopping at the end of the iteration, at the latest in {seconds:.0f} s; once more stops at once\n"
        )
