"""Helpers of the tests of preemption notices: coroutines as tests, a listener, and a clock that is wrong."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager

from spotlight.core.work import NoticeKind
from spotlight.node.notices.joined import JoinedNotices
from spotlight.node.notices.metadata_http import MetadataClient
from spotlight.node.notices.notice import Notice, WatchedSource
from spotlight.node.notices.watch import watch_all

POLL_S = 0.005
RETRY_S = 0.002
LIMIT_S = 0.3


def story(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a coroutine as a test; a watcher that hangs fails it."""

    @functools.wraps(test)
    def run(*args: object, **named: object) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(test(*args, **named), 60)

        asyncio.run(bounded())

    return run


class StoryClock:
    """This machine's clocks, with a wall clock that is wrong and a monotonic clock that a test may advance."""

    def __init__(self, wrong_s: float = 0.0) -> None:
        self.wrong_s = wrong_s
        self.advanced_s = 0.0

    def now(self) -> float:
        return time.monotonic() + self.advanced_s

    def wall(self) -> float:
        return time.time() + self.wrong_s


class Listener:
    """Collects the node's notices: what a watch announces, joined as the agent does it."""

    def __init__(self) -> None:
        self._notices: asyncio.Queue[Notice] = asyncio.Queue()
        self._joined = JoinedNotices()

    async def listen(self, sources: Sequence[WatchedSource]) -> None:
        async with aclosing(watch_all(sources, RETRY_S)) as notices:
            async for notice in notices:
                if (change := self._joined.update(notice)) is not None:
                    self._notices.put_nowait(change)

    async def next(self) -> Notice:
        return await asyncio.wait_for(self._notices.get(), 20)

    def is_silent(self) -> bool:
        return self._notices.empty()


@asynccontextmanager
async def listening(*sources: WatchedSource) -> AsyncIterator[Listener]:
    """Watch the sources meanwhile; the end cancels the watch, and fails if the watch has ended before."""
    listener = Listener()
    task = asyncio.create_task(listener.listen(sources))
    try:
        yield listener
        assert not task.done(), "the watch has ended by itself"
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=20)
        assert task.cancelled()


def client(url: str, clock: StoryClock | None = None) -> MetadataClient:
    return MetadataClient(clock or StoryClock(), url, LIMIT_S)


def is_imminent(notice: Notice, seconds: float) -> bool:
    """Whether it is an imminent notice of about so many seconds; sources round times, and machines are busy."""
    left = notice.seconds_left(time.monotonic())
    is_near = left is not None and seconds - 5 < left < seconds + 1.5
    return notice.kind is NoticeKind.IMMINENT and not notice.withdrawn and is_near
