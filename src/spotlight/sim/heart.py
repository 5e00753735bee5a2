"""A simulated worker's heart: beats at even distances, whatever the worker does meanwhile.

Callbacks, because a task for every heart would outweigh all else that a worker is. They keep the order of one: a beat
comes after all that is due at its instant, as who wakes from a sleep does, and a heart is stopped a turn of the loop
after its worker, unless it is started again meanwhile (tests/unit/test_heart.py).

    start --> RESTING --s--> BEATING --> RESTING        frozen when it should beat: OWING --thaw--> BEATING
    any of them --stop--> STOPPED
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum


class HeartState(StrEnum):
    RESTING = "resting"
    BEATING = "beating"
    OWING = "owing"
    STOPPED = "stopped"


class Heart:
    """`beat` is called every so many seconds from `start` to `stop`."""

    def __init__(self, beat: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._beat = beat
        self._seconds = 0.0
        self._state = HeartState.STOPPED
        self._next: asyncio.Handle | None = None
        self._ending: asyncio.Handle | None = None
        self._is_frozen = False

    def start(self, seconds: float) -> None:
        for earlier in (self._next, self._ending):
            if earlier is not None:
                earlier.cancel()
        self._seconds = seconds
        self._state = HeartState.RESTING
        self._next = self._loop.call_soon(self._rest)

    def stop(self) -> None:
        self._ending = self._loop.call_soon(self._end)

    def freeze(self) -> None:
        self._is_frozen = True

    def thaw(self) -> None:
        self._is_frozen = False
        if self._state is HeartState.OWING:
            self._due()

    def _rest(self) -> None:
        self._state = HeartState.RESTING
        self._next = self._loop.call_later(self._seconds, self._due)

    def _due(self) -> None:
        self._state = HeartState.BEATING
        self._next = self._loop.call_soon(self._strike)

    def _strike(self) -> None:
        if self._is_frozen:
            self._state = HeartState.OWING
            return
        self._beat()
        self._rest()

    def _end(self) -> None:
        self._state = HeartState.STOPPED
        if self._next is not None:
            self._next.cancel()
