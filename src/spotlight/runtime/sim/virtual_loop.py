"""Virtual time: an asyncio event loop that never sleeps, because its clock jumps to the next timer.

Invariant: what runs, and in which order, depends on the program alone, never on the machine's speed or clocks
(tests/storm/test_storm.py compares traces of two processes), and of a run that is over nothing is left
(tests/unit/test_virtual_loop.py).

    run_virtually(main())        # an hour of asyncio.sleep takes milliseconds
"""

import asyncio
import contextvars
import gc
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from heapq import heapify, heappop, heappush
from typing import TypeVar

Outcome = TypeVar("Outcome")
RESOLUTION_S = 1e-9
"""Timers closer than this are due together; sums of floating-point delays differ by less."""
MANY = 100
"""Timers among which cancelled ones are looked for."""
COLLECTIONS = (10_000_000, 50, 100)
"""How rarely garbage is looked for: nearly all of it is freed without, and every look goes over all that lives."""
EPOCH_S = 1_700_000_000.0
"""Where wall time begins: any date, always the same."""


class NothingLeft(RuntimeError):
    """No timer is set and nothing is ready: the program waits for something that cannot happen any more."""


class Call:
    """Something to be called soon."""

    __slots__ = ("args", "callback")
    callback: Callable[..., object] | None
    args: tuple[object, ...]

    def cancel(self) -> None:
        self.callback = None

    def cancelled(self) -> bool:
        return self.callback is None


class Timer(float):
    """Something to be called when it is due; compared as the number that it is."""

    __slots__ = ("args", "callback", "loop")
    callback: Callable[..., object] | None
    args: tuple[object, ...]
    loop: "VirtualLoop"

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self.loop.timer_cancelled(self)

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return float(self)


class VirtualLoop(asyncio.SelectorEventLoop):
    """One thread, no files, no real time.

    Timers and calls are not those of asyncio, which are compared in Python and keep a context each: of ten thousand
    workers, that is most of what a loop does. So everything runs in one context: nobody here keeps anything in context
    variables while waiting. All else is as there, the order of timers of one instant included.
    """

    _ready: deque[Call | Timer]  # type: ignore[assignment]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__(selectors.SelectSelector())
        self.now = 0.0
        """What `time` tells, for those who ask all the time; the loop alone changes it."""
        self._timers: list[Timer] = []
        self._cancelled = 0
        """Timers among them that are due no more."""

    get_debug = staticmethod(bool)
    """Never: every future asks, and this answers without a call of Python."""

    def time(self) -> float:
        return self.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> Call:
        call = Call()
        call.callback = callback
        call.args = args
        self._ready.append(call)
        return call

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> Call:
        """There is one thread only."""
        return self.call_soon(callback, *args)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> Timer:
        timer = Timer(when)
        timer.callback = callback
        timer.args = args
        timer.loop = self
        heappush(self._timers, timer)
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> Timer:
        timer = Timer(self.now + delay)
        timer.callback = callback
        timer.args = args
        timer.loop = self
        heappush(self._timers, timer)
        return timer

    def close(self) -> None:
        """Who waited for a timer waits no more, and is not kept by it either."""
        super().close()
        self._timers.clear()
        self._cancelled = 0

    def timer_cancelled(self, timer: Timer) -> None:
        """Called by a timer of this loop; one that is due already is not among those that wait."""
        self._cancelled += timer >= self.now + RESOLUTION_S

    def _run_once(self) -> None:
        """Round after round until somebody stops the loop: what is ready, once each; where nothing is, time passes at
        once until the next timer is due. One call of many rounds, for a round is most often of one or two calls."""
        ready = self._ready
        while True:
            if self._cancelled > MANY / 2:
                self._tidy()
            timers = self._timers
            while timers and timers[0].callback is None:
                heappop(timers)
                self._cancelled -= 1
            if not ready and not self._stopping:
                if not timers:
                    raise NothingLeft("everybody waits and no timer is set, so that nothing can ever happen again.")
                if timers[0] > self.now:
                    self.now = float(timers[0])
            due = self.now + RESOLUTION_S
            while timers and timers[0] < due:
                ready.append(heappop(timers))
            for _ in range(len(ready)):
                call = ready.popleft()
                callback = call.callback
                if callback is None:
                    continue
                call.callback = None
                try:
                    callback(*call.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"{callback!r} raised", "exception": error})
            if self._stopping:
                return

    def _tidy(self) -> None:
        """Cancelled timers go when they come up, or all at once when they are the most."""
        timers = self._timers
        if len(timers) > MANY and self._cancelled > len(timers) / 2:
            self._timers = [timer for timer in timers if timer.callback is not None]
            heapify(self._timers)
            self._cancelled = 0


def running_loop() -> VirtualLoop:
    """The one that simulated machines run in."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "simulated machines run under virtual time only"
    return loop


class VirtualClock:
    """`core.clock.Clock` of a virtual loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = loop.time

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
        _cancel_rest(loop)
        asyncio.set_event_loop(None)
        loop.close()
        gc.set_threshold(*usual)
        # A run is one big cycle, and the next one looks for no garbage.
        gc.collect()
    if escaped:
        raise escaped[0]
    return outcome


def _cancel_rest(loop: asyncio.AbstractEventLoop) -> None:
    rest = [task for task in asyncio.all_tasks(loop) if not task.done()]
    for task in rest:
        task.cancel()
    if rest:
        loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
