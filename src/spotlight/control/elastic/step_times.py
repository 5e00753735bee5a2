"""Deadlines of forwards, from recent forwards of the same work at any degree.

Invariant: a forward that is no slower than similar ones is never overdue, not even after a loss of members
(tests/unit/test_regroup_deadlines.py).
"""

from collections import deque
from math import ceil
from typing import NamedTuple

from spotlight.control.elastic.config import ElasticConfig
from spotlight.core.crew_messages import Forward

RECENT = 64
"""Forwards remembered per kind: enough for a percentile, few enough to follow a change."""


class StepKind(NamedTuple):
    """Forwards that take about the same time at one degree."""

    rows: int
    tokens: int
    guided: bool


class StepTimes:
    """Durations of this node's forwards by kind."""

    def __init__(self, config: ElasticConfig) -> None:
        self._config = config
        self._recent: dict[StepKind, deque[tuple[int, float]]] = {}

    def took(self, forward: Forward, degree: int, seconds: float) -> None:
        self._recent.setdefault(_kind(forward), deque(maxlen=RECENT)).append((degree, seconds))

    def allowed_s(self, forward: Forward, degree: int) -> float:
        """Seconds that a forward may take; times of larger crews are stretched by the share of the missing members."""
        recent = self._recent.get(_kind(forward))
        if not recent:
            return max(self._config.first_step_s, self._config.step_floor_s)
        ordered = sorted(seconds * max(1.0, before / degree) for before, seconds in recent)
        p99 = ordered[ceil(0.99 * len(ordered)) - 1]
        return max(self._config.step_floor_s, self._config.step_factor * p99)


def _kind(forward: Forward) -> StepKind:
    return StepKind(forward.rows, forward.tokens, forward.guided)
