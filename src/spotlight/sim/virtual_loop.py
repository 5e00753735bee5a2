"""Virtual time: an asyncio event loop that never sleeps, because its clock jumps to the next timer.

Invariant: the order of callbacks depends on the program alone, never on the machine's speed or clocks
(tests/storm/test_storm.py compares traces of two processes), and a finished run leaves no object behind
(tests/unit/test_virtual_loop.py).

Timers of one instant run in the order in which they were set. They wait in the loop's own heap of tuples, which Python
compares without calling a method: with ten thousand workers, asyncio's comparisons cost a tenth of a simulation.

    run_virtually(main())        # an hour of asyncio.sleep takes milliseconds
"""

import asyncio
import gc
import selectors
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import TypeAlias, TypeVar

Outcome = TypeVar("Outcome")
COLLECTIONS = (10_000_000, 50, 100)
"""Garbage collection thresholds: reference counts free nearly everything, and a collection visits all objects."""
EPOCH_S = 1_700_000_000.0
"""Wall time at virtual time 0: any date, always the same."""


class NothingLeft(RuntimeError):
    """No timer is set and no callback is ready: the program waits for an event that cannot happen."""


_Entry: TypeAlias = tuple[float, int, asyncio.TimerHandle, Callable[..., object], tuple[object, ...], Context]
"""Time, number, handle of the caller, callback, its arguments, its context."""


class _Timers(selectors.SelectSelector):
    """Starts due timers instead of waiting for files; asyncio calls `select` before every round of callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.heap: list[_Entry] = []
        self.start: Callable[[_Entry], object]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        heap = self.heap
        while heap and heap[0][2].cancelled():
            heappop(heap)
        if timeout is None:
            if not heap:
                raise NothingLeft("every task waits and no timer is set, so nothing can ever happen again.")
            self.now = max(self.now, heap[0][0])
        while heap and heap[0][0] <= self.now:
            self.start(heappop(heap))
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """One thread, no files, no real time; the rest is asyncio's own."""

    def __init__(self) -> None:
        self._timers = _Timers()
        super().__init__(self._timers)
        self._timers.start = self._start
        self._count = 0

    def time(self) -> float:
        return self._timers.now

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = context or copy_context()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heappush(self._timers.heap, (when, self._count, timer, callback, args, context))
        return timer

    def close(self) -> None:
        super().close()
        self._timers.heap.clear()

    def _start(self, entry: _Entry) -> None:
        _, _, timer, callback, args, context = entry
        if not timer.cancelled():
            self.call_soon(_fire, timer, callback, args, context=context)


def _fire(timer: asyncio.TimerHandle, callback: Callable[..., object], args: tuple[object, ...]) -> None:
    """Run a due timer, unless a callback of the same round has cancelled it."""
    if not timer.cancelled():
        callback(*args)


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
