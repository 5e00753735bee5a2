"""Virtual time: an asyncio event loop that never sleeps, because its clock jumps to the next timer.

Invariant: what runs, and in which order, depends on the program alone, never on the machine's speed or clocks
(tests/storm/test_storm.py compares traces of two processes).

    run_virtually(main())        # an hour of asyncio.sleep takes milliseconds
"""

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import TypeVar

Outcome = TypeVar("Outcome")
RESOLUTION_S = 1e-9
"""Timers closer than this are due together; sums of floating-point delays differ by less."""
EPOCH_S = 1_700_000_000.0
"""Where wall time begins: any date, always the same."""


class NothingLeft(RuntimeError):
    """No timer is set and nothing is ready: the program waits for something that cannot happen any more."""


class _Jump(selectors.SelectSelector):
    """Waits for nobody: the time that the loop wants to wait has passed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise NothingLeft("everybody waits and no timer is set, so that nothing can ever happen again.")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """One thread, no files, no real time."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        self._clock_resolution = RESOLUTION_S

    def time(self) -> float:
        return self._jump.now


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
    try:
        outcome = loop.run_until_complete(main)
    finally:
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
