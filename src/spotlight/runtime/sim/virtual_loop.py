"""Virtual time: an asyncio event loop that never sleeps, because its clock jumps to the next timer.

Invariant: what runs, and in which order, depends on the program alone, never on the machine's speed or clocks
(tests/storm/test_storm.py compares traces of two processes).

    run_virtually(main())        # an hour of asyncio.sleep takes milliseconds
"""

import asyncio
import contextvars
import gc
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from heapq import heapify, heappop, heappush
from typing import TypeVar, TypeVarTuple

Outcome = TypeVar("Outcome")
Arguments = TypeVarTuple("Arguments")
RESOLUTION_S = 1e-9
"""Timers closer than this are due together; sums of floating-point delays differ by less."""
MANY = 100
"""Timers among which cancelled ones are looked for."""
COLLECTIONS = (200_000, 50, 100)
"""How rarely garbage is looked for: nearly all of it is freed without, and every look goes over all that lives."""
EPOCH_S = 1_700_000_000.0
"""Where wall time begins: any date, always the same."""


class NothingLeft(RuntimeError):
    """No timer is set and nothing is ready: the program waits for something that cannot happen any more."""


class _Timer(float):
    """When it is due; compared as the number that it is."""

    __slots__ = ("handle",)
    handle: asyncio.TimerHandle


class VirtualLoop(asyncio.SelectorEventLoop):
    """One thread, no files, no real time.

    Timers are not those of asyncio, which are compared in Python: of ten thousand workers, that is most of what a loop
    does. All else is as there, the order of timers of one instant included.
    """

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__(selectors.SelectSelector())
        self._now = 0.0
        self._timers: list[_Timer] = []
        self._cancelled = 0
        """Timers among them that are due no more."""

    def time(self) -> float:
        return self._now

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = _Timer(when)
        timer.handle = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, timer)
        return timer.handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by a timer of this loop; one that is due already is not among those that wait."""
        self._cancelled += handle.when() >= self._now + RESOLUTION_S

    def _run_once(self) -> None:
        """What is ready, once each; where nothing is, time passes at once until the next timer is due."""
        self._tidy()
        timers, ready = self._timers, self._ready
        if not ready and not self._stopping:
            if not timers:
                raise NothingLeft("everybody waits and no timer is set, so that nothing can ever happen again.")
            self._now = max(self._now, float(timers[0]))
        due = self._now + RESOLUTION_S
        while timers and timers[0] < due:
            ready.append(heappop(timers).handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _tidy(self) -> None:
        """Cancelled timers go when they come up, or all at once when they are the most."""
        timers = self._timers
        if len(timers) > MANY and self._cancelled > len(timers) / 2:
            self._timers = [timer for timer in timers if not timer.handle.cancelled()]
            heapify(self._timers)
            self._cancelled = 0
        while self._timers and self._timers[0].handle.cancelled():
            heappop(self._timers)
            self._cancelled -= 1


class VirtualClock:
    """`core.clock.Clock` of a virtual loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return EPOCH_S + self._loop.time()


def run_virtually(main: Coroutine[None, None, Outcome]) -> Outcome:
    """The outcome of `main` in a virtual loop of its own; an exception that a callback lets escape is raised too."""
    loop = VirtualLoop()
    escaped: list[BaseException] = []

    def keep(_: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
        error = context.get("exception")
        escaped.append(error if isinstance(error, BaseException) else RuntimeError(str(context.get("message"))))

    loop.set_exception_handler(keep)
    asyncio.set_event_loop(loop)
    usual = gc.get_threshold()
    gc.set_threshold(*COLLECTIONS)
    try:
        outcome = loop.run_until_complete(main)
    finally:
        gc.set_threshold(*usual)
        _cancel_rest(loop)
        asyncio.set_event_loop(None)
        loop.close()
    if escaped:
        raise escaped[0]
    return outcome


def _cancel_rest(loop: asyncio.AbstractEventLoop) -> None:
    rest = [task for task in asyncio.all_tasks(loop) if not task.done()]
    for task in rest:
        task.cancel()
    if rest:
        loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
