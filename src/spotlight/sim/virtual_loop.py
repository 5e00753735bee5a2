"""Virtual time: an asyncio event loop that never sleeps, because its clock jumps to the next timer.

Invariant: the order of callbacks depends on the program alone, never on the machine's speed or clocks
(tests/storm/test_storm.py compares traces of two processes), and a finished run leaves no object behind
(tests/unit/test_virtual_loop.py).

Timers wait in the loop's own heap of floats, which Python compares without calling a method. Timers and callbacks run
without a handle and a context of their own: with ten thousand workers, asyncio's cost a fifth of a simulation. So
simulated code must keep nothing in context variables. As in asyncio, the order of timers of one instant follows from
the calls that set and cancelled them: the same in every process, though not always the order of setting.

    run_virtually(main())        # an hour of asyncio.sleep takes milliseconds
"""

import asyncio
import gc
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from heapq import heapify, heappop, heappush
from typing import ClassVar, TypeVar

Outcome = TypeVar("Outcome")
COLLECTIONS = (10_000_000, 50, 100)
"""Garbage collection thresholds: reference counts free nearly everything, and a collection visits all objects."""
MANY = 100
"""Number of timers above which cancelled ones are removed once they are the most, as in asyncio."""
RESOLUTION_S = 1e-9
"""Timers this close together are due at one instant, as in asyncio: sums of the same durations differ in last bits."""
EPOCH_S = 1_700_000_000.0
"""Wall time at virtual time 0: any date, always the same."""


class NothingLeft(RuntimeError):
    """No timer is set and no callback is ready: the program waits for an event that cannot happen."""


class _Timer(float):
    """A timer and its own key in the heap: floats are compared without a call. asyncio's code uses `cancel` only.

    Also a callback of the present instant, which waits in no heap.
    """

    __slots__ = ("call", "waits_in")

    call: tuple[Callable[..., object], tuple[object, ...]] | None
    """Callback and arguments; None once it has run or was cancelled."""
    waits_in: "_Timers | None"
    """None once it is due."""

    def cancel(self) -> None:
        if self.call is not None and self.waits_in is not None:
            self.waits_in.cancelled += 1
        self.call = None


class _Timers(selectors.SelectSelector):
    """Runs due timers instead of waiting for files; asyncio calls `select` before every round of callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.heap: list[_Timer] = []
        self.cancelled = 0
        """Number of cancelled timers in the heap."""
        self.soon: deque[_Timer] = deque()
        """Callbacks of this instant, run after the timers that are due."""
        self.report: Callable[[dict[str, object]], object]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        soon = self.soon
        if timeout is None and not soon:
            # No callback is ready, so timers that run now run in asyncio's order.
            self._tidy()
            if not self.heap:
                raise NothingLeft("every task waits and no timer is set, so nothing can ever happen again.")
            self.now += max(0.0, self.heap[0] - self.now)
            self._run(self._due())
        self._tidy()
        soon.extend(self._due())
        # As in asyncio, those that they add run in the next round.
        ready = list(soon)
        soon.clear()
        self._run(ready)
        return []

    def _run(self, timers: list[_Timer]) -> None:
        for timer in timers:
            if (call := timer.call) is None:
                continue
            timer.call = None
            callback, args = call
            try:
                callback(*args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.report({"message": "a callback raised", "exception": error})

    def _due(self) -> list[_Timer]:
        """Remove and return the timers of this instant."""
        heap, due, found = self.heap, self.now + RESOLUTION_S, []
        while heap and heap[0] < due:
            timer = heappop(heap)
            timer.waits_in = None
            if timer.call is None:
                self.cancelled -= 1
            else:
                found.append(timer)
        return found

    def _tidy(self) -> None:
        """Remove cancelled timers: the first ones, or all once they are the most."""
        heap = self.heap
        if len(heap) > MANY and self.cancelled > len(heap) / 2:
            heap[:] = [timer for timer in heap if timer.call is not None]
            heapify(heap)
            self.cancelled = 0
        while heap and heap[0].call is None:
            heappop(heap)
            self.cancelled -= 1


class VirtualLoop(asyncio.SelectorEventLoop):
    """One thread, no files, no real time; the rest is asyncio's own."""

    keeps_frozen: ClassVar[bool] = False
    """Objects were frozen before a run of this process; kept, because Python counts them by visiting every one."""

    def __init__(self) -> None:
        self._timers = _Timers()
        super().__init__(self._timers)
        self._timers.report = self.call_exception_handler

    def time(self) -> float:
        return self._timers.now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> _Timer:
        timer = _Timer(self._timers.now)
        timer.call = (callback, args)
        timer.waits_in = None
        self._timers.soon.append(timer)
        return timer

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> _Timer:
        timer = _Timer(when)
        timer.call = (callback, args)
        timer.waits_in = self._timers
        heappush(self._timers.heap, timer)
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> _Timer:
        return self.call_at(self._timers.now + delay, callback, *args)

    def close(self) -> None:
        super().close()
        self._timers.heap.clear()
        self._timers.soon.clear()


class VirtualClock:
    """`core.clock.Clock` over a virtual loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = loop.time

    def wall(self) -> float:
        return EPOCH_S + self._loop.time()


def run_virtually(main: Coroutine[None, None, Outcome]) -> Outcome:
    """Run `main` in its own virtual loop; also raise an exception that escapes from a callback."""
    escaped: list[BaseException] = []

    def keep(_: asyncio.AbstractEventLoop, context: Mapping[str, object]) -> None:
        error = context.get("exception")
        escaped.append(error if isinstance(error, BaseException) else RuntimeError(str(context.get("message"))))

    thresholds = gc.get_threshold()
    # A process that froze objects before keeps them frozen: otherwise every later full collection would visit them.
    stays_frozen = VirtualLoop.keeps_frozen = VirtualLoop.keeps_frozen or gc.get_freeze_count() > 0
    if stays_frozen:
        gc.collect()
    # Existing objects are not this run's garbage: no collection visits them.
    gc.freeze()
    gc.set_threshold(*COLLECTIONS)
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.get_loop().set_exception_handler(keep)
            outcome = runner.run(main)
    finally:
        gc.set_threshold(*thresholds)
        # The objects of a run form one large cycle; without this, they would live until the end of the next run.
        gc.collect()
        if not stays_frozen:
            gc.unfreeze()
    if escaped:
        raise escaped[0]
    return outcome
