"""Times an action repeatedly, within a limit, and computes percentiles.

Invariant: an action is timed at least once, and its device has finished when the watch stops
(tests/unit/test_profile_command.py).
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from spotlight.control.profiles import Point


@dataclass(frozen=True, kw_only=True)
class Stopwatch:
    """Device, repeats and time limits of a measurement."""

    device: torch.device
    repeats: int
    patience_s: float
    """No repeat starts after this total time, so that slow actions are timed less often."""
    least_s: float = 0.0
    """Fast actions are repeated for this total time, to average over the load of a shared machine."""

    def times(self, action: Callable[[], object], warm_ups: int = 1) -> list[float]:
        """Seconds of each repeat, without the warm-ups."""
        for _ in range(warm_ups):
            action()
        self._wait()
        seconds: list[float] = []
        while not seconds or sum(seconds) < self.least_s or self._goes_on(seconds):
            began = time.perf_counter()
            action()
            self._wait()
            seconds.append(time.perf_counter() - began)
        return seconds

    def _goes_on(self, seconds: Sequence[float]) -> bool:
        return len(seconds) < self.repeats and sum(seconds) < self.patience_s

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def point(seconds: Sequence[float], batch: int = 1) -> Point:
    """Median and p99 of one slot's times; p99 by nearest rank, so it is the maximum of fewer than 100 times."""
    ordered = sorted(seconds)
    p99 = ordered[-(-99 * len(ordered) // 100) - 1]
    return Point(batch, 1, statistics.median(ordered), p99)
