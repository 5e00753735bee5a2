"""Watches several sources at once.

Each source is polled by its own task. A failure is logged once, until the source works again, and retried with a pause
that doubles; the last known state of the source stays in force meanwhile. No failure ends the watch.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import NoReturn

import msgspec

from spotlight.core.errors import describe
from spotlight.node.notices.notice import Notice, WatchedSource

log = logging.getLogger("spotlight.notices")
RETRY_FIRST_S = 0.1
RETRY_MOST_S = 5.0
"""A sixth of the shortest warning of a cloud."""


async def watch_all(sources: Sequence[WatchedSource], retry_s: float = RETRY_FIRST_S) -> AsyncGenerator[Notice, None]:
    """Changes of each source, notices and withdrawals; never ends, not even without sources.

    Use it inside `contextlib.aclosing`, so that its tasks end with the loop over it.
    """
    changes: asyncio.Queue[Notice] = asyncio.Queue()
    tasks = [asyncio.create_task(_Watcher(source, changes, retry_s).run()) for source in sources]
    try:
        while True:
            yield await changes.get()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for source in sources:
            source.close()


class _Watcher:
    """Polls one source for ever."""

    def __init__(self, source: WatchedSource, changes: asyncio.Queue[Notice], retry_s: float) -> None:
        self._source = source
        self._changes = changes
        self._retry_s = retry_s
        self._failures = 0
        self._last: Notice | None = None
        """The source's notice in force."""

    async def run(self) -> NoReturn:
        while True:
            try:
                notice = await self._source.poll()
            except Exception as error:
                await asyncio.sleep(self._failed(error))
                continue
            self._worked()
            self._announce(notice)
            await asyncio.sleep(self._source.pause_s)

    def _announce(self, notice: Notice | None) -> None:
        """Put the change since the last poll, if any."""
        last, self._last = self._last, notice
        if notice is None and last is not None:
            self._changes.put_nowait(msgspec.structs.replace(last, withdrawn=True))
        elif notice is not None and notice != last:
            self._changes.put_nowait(notice)

    def _failed(self, error: Exception) -> float:
        """Log the first failure in a row; returns the seconds to the next poll."""
        if not self._failures:
            log.warning("notices of '%s' cannot be read and are retried: %s", self._source.name, describe(error))
        self._failures += 1
        return min(self._retry_s * 2.0 ** min(self._failures - 1, 30), RETRY_MOST_S)

    def _worked(self) -> None:
        if self._failures:
            log.info("notices of '%s' are read again after %d failures", self._source.name, self._failures)
        self._failures = 0
