"""A worker's activities for the timeline: spans of one activity, merged where they touch."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from spotlight.core.messages import Span
from spotlight.core.work import Activity

GAP_S = 0.02
"""Spans of one activity with a shorter pause between them are merged: the pause is book-keeping, not idle time."""


class SpanLog:
    """Written by the model's thread, read by the heartbeat thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: list[tuple[Activity, float, float]] = []
        self._open: tuple[Activity, float] | None = None

    @property
    def current(self) -> Activity | None:
        now_open = self._open
        return None if now_open is None else now_open[0]

    @contextmanager
    def doing(self, activity: Activity) -> Iterator[None]:
        began = time.monotonic()
        with self._lock:
            self._open = (activity, began)
        try:
            yield
        finally:
            with self._lock:
                if self._open is not None:
                    self._add(activity, self._open[1], time.monotonic())
                self._open = None

    def record(self, activity: Activity, start: float, end: float) -> None:
        """Add a finished span."""
        with self._lock:
            self._add(activity, start, end)

    def take(self) -> tuple[Span, ...]:
        """Return the spans since the last call, the open one up to now; their times are seconds before now."""
        with self._lock:
            now = time.monotonic()
            if self._open is not None:
                activity, began = self._open
                self._add(activity, began, now)
                self._open = (activity, now)
            done, self._done = self._done, []
        return tuple(Span(activity, now - start, now - end) for activity, start, end in done)

    def _add(self, activity: Activity, start: float, end: float) -> None:
        if self._done and self._done[-1][0] is activity and start - self._done[-1][2] < GAP_S:
            start = self._done.pop()[1]
        self._done.append((activity, start, end))
