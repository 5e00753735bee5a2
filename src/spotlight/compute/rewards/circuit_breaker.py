"""A circuit breaker: after several failures in a row, requests to an endpoint fail at once for a while.

            limit failures in a row          rest_s passed, one request is let through
    CLOSED --------------------------> OPEN ------------------------------------------> PROBING
       ^                                ^                                                |   |
       |                                `------------- the probe fails ------------------'   |
       `------------------------------- the probe is answered -------------------------------'

The endpoint's client owns it and reports every outcome; a probe without an outcome is replaced after `rest_s`. Time is
an argument. Threads may share it.
"""

import threading
from enum import StrEnum


class Circuit(StrEnum):
    """State of a breaker."""

    CLOSED = "closed"
    """Requests pass."""
    OPEN = "open"
    """Requests fail at once."""
    PROBING = "probing"
    """One request is under way; the others fail at once."""


class CircuitBreaker:
    """Decides whether a request may be sent."""

    def __init__(self, limit: int, rest_s: float) -> None:
        self._limit, self._rest_s = limit, rest_s
        self._lock = threading.Lock()
        self._state = Circuit.CLOSED
        self._failures = 0
        self._next_probe = 0.0

    def allows(self, now: float) -> bool:
        """Whether a request may be sent now; after the rest, True once, for the probe."""
        with self._lock:
            if self._state is not Circuit.CLOSED:
                if now < self._next_probe:
                    return False
                self._state, self._next_probe = Circuit.PROBING, now + self._rest_s
            return True

    def answered(self) -> None:
        with self._lock:
            self._state, self._failures = Circuit.CLOSED, 0

    def failed(self, now: float) -> None:
        with self._lock:
            self._failures += 1
            if self._state is Circuit.PROBING or self._failures >= self._limit:
                self._state, self._next_probe = Circuit.OPEN, now + self._rest_s
