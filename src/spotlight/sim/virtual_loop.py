"""Virtual time: an asyncio event loop that never sleeps, because its clock jumps to the next timer.

Invariant: the order of callbacks depends on the program alone, never on the machine's speed or clocks
(tests/storm/test_storm.py compares traces of two processes), and a finished run leaves no object behind
(tests/unit/test_virtual_loop.py).

Timers wait in the loop's own heap of floats, which Python compares without calling a method: with ten thousand workers,
asyncio's comparisons cost a tenth of a simulation. As in asyncio, the order of timers of one instant follows from the
calls that set and cancelled them: the same in every process, though not always the order of setting.

    run_virtually(main())        # an hour of asyncio.sleep takes milliseconds
"""

import asyncio
import gc
import selectors
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from typing import TypeVar

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
    """A timer and its own key in the heap: floats are compared without a call. asyncio's code uses `cancel` only."""

    __slots__ = ("call", "waits_in")

    call: tuple[Callable[..., object], tuple[object, ...], Context] | None
    """Callback, arguments and context; None once it has run or was cancelled."""
    waits_in: "_Timers | None"
    """None once it is due."""

    def cancel(self) -> None:
        if self.call is not None and self.waits_in is not None:
            self.waits_in.cancelled += 1
        self.call = None

    def run(self) -> None:
        if self.call is not None:
            callback, args, _ = self.call
            self.call = None
            callback(*args)


class _Timers(selectors.SelectSelector):
    """Starts due timers instead of waiting for files; asyncio calls `select` before every round of callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.heap: list[_Timer] = []
        self.cancelled = 0
        """Number of cancelled timers in the heap."""
        self.start: Callable[[_Timer], object]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        heap = self.heap
        if len(heap) > MANY and self.cancelled > len(heap) / 2:
            heap[:] = [timer for timer in heap if timer.call is not None]
            heapify(heap)
            self.cancelled = 0
        while heap and heap[0].call is None:
            heappop(heap)
            self.cancelled -= 1
        if timeout is None:
            if not heap:
                raise NothingLeft("every task waits and no timer is set, so nothing can ever happen again.")
            self.now += max(0.0, heap[0] - self.now)
        due = self.now + RESOLUTION_S
        while heap and heap[0] < due:
            timer = heappop(heap)
            timer.waits_in = None
            if timer.call is None:
                self.cancelled -= 1
            else:
                self.start(timer)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """One thread, no files, no real time; the rest is asyncio's own."""

    def __init__(self) -> None:
        self._timers = _Timers()
        super().__init__(self._timers)
        self._timers.start = self._start

    def time(self) -> float:
        return self._timers.now

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> _Timer:
        timer = _Timer(when)
        timer.call = (callback, args, context or copy_context())
        timer.waits_in = self._timers
        heappush(self._timers.heap, timer)
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> _Timer:
        return self.call_at(self._timers.now + delay, callback, *args, context=context)

    def close(self) -> None:
        super().close()
        self._timers.heap.clear()

    def _start(self, timer: _Timer) -> None:
        """Run a due timer in this round, unless an earlier callback of the round cancels it."""
        assert timer.call is not None
        self.call_soon(timer.run, context=timer.call[2])


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
        gc.unfreeze()
    if escaped:
        raise escaped[0]
    return outcome
