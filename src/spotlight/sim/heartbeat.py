"""Heartbeats of a simulated worker: one every `seconds`, whatever else the worker does.

Callbacks, because one task per heartbeat would outweigh the rest of a simulated worker. They keep the order that a task
would have: a heartbeat runs after everything due at its instant, and stops one iteration of the event loop after its
worker unless it is started again (tests/unit/test_heartbeat.py).

    start --> WAITING --seconds--> DUE --> WAITING        frozen when due: MISSED --thaw--> DUE
    any state --stop--> STOPPED
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum


class HeartbeatState(StrEnum):
    WAITING = "waiting"
    DUE = "due"
    MISSED = "missed"
    STOPPED = "stopped"


class Heartbeat:
    """Calls `beat` every `seconds` from `start` to `stop`."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._beat = beat
        self._seconds = 0.0
        self._state = HeartbeatState.STOPPED
        self._next: asyncio.Handle | None = None
        self._ending: asyncio.Handle | None = None
        self._is_frozen = False

    def start(self, seconds: float) -> None:
        for earlier in (self._next, self._ending):
            if earlier is not None:
                earlier.cancel()
        self._seconds = seconds
        self._state = HeartbeatState.WAITING
        self._next = self._loop.call_soon(self._wait)

    def stop(self) -> None:
        self._ending = self._loop.call_soon(self._end)

    def freeze(self) -> None:
        self._is_frozen = True

    def thaw(self) -> None:
        self._is_frozen = False
        if self._state is HeartbeatState.MISSED:
            self._due()

    def _wait(self) -> None:
        self._state = HeartbeatState.WAITING
        self._next = self._loop.call_later(self._seconds, self._due)

    def _due(self) -> None:
        self._state = HeartbeatState.DUE
        self._next = self._loop.call_soon(self._send)

    def _send(self) -> None:
        if self._is_frozen:
            self._state = HeartbeatState.MISSED
            return
        self._beat()
        self._wait()

    def _end(self) -> None:
        self._state = HeartbeatState.STOPPED
        if self._next is not None:
            self._next.cancel()
