"""Virtual time: an asyncio event loop that never sleeps, because its clock jumps to the next timer.

Invariant: the order of callbacks depends on the program alone, never on the machine's speed or clocks
(tests/storm/test_storm.py compares traces of two processes), and a finished run leaves no object behind
(tests/unit/test_virtual_loop.py).

asyncio keeps timers in a heap that compares only their times. So the order of timers of one instant follows from the
calls that set and cancelled them: the same in every process, though not always the order of setting.

    run_virtually(main())        # an hour of asyncio.sleep takes milliseconds
"""

import asyncio
import gc
import selectors
from collections.abc import Coroutine, Mapping
from typing import TypeVar

Outcome = TypeVar("Outcome")
COLLECTIONS = (10_000_000, 50, 100)
"""Garbage collection thresholds: reference counts free nearly everything, and a collection visits all objects."""
EPOCH_S = 1_700_000_000.0
"""Wall time at virtual time 0: any date, always the same."""


class NothingLeft(RuntimeError):
    """No timer is set and no callback is ready: the program waits for an event that cannot happen."""


class _JumpingSelector(selectors.SelectSelector):
    """Adds the requested timeout to its clock instead of waiting; no file is ever ready."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingLeft("every task waits and no timer is set, so nothing can ever happen again.")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """One thread, no files, no real time; the rest is asyncio's own."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


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
