"""Server-sent events of a run: one poller per run, shared by all its clients.

The poller waits for new records and for changes of the run's state, and renders once for all; a client waits for the
poller. It polls only while there are clients, and spends at most a fifth of one core on it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

from spotlight.surface.dashboard.followed_run import FollowedRun

log = logging.getLogger(__name__)
POLL_S = 0.5
OVER_S = 2.0
"""Seconds between polls of a run that is over: it may be resumed."""
REST = 4.0
"""Rest after a poll, in multiples of its own time."""
HEARTBEAT_S = 15.0
OPENING = b"retry: 1000\n\n"
"""Milliseconds after which a browser connects again."""


class RunStream:
    """Clients of one run."""

    def __init__(self, run: FollowedRun) -> None:
        self.run = run
        self.clients = 0
        self._changed = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._is_closed = False

    def close(self) -> None:
        """End all streams, from any thread or signal handler; browsers connect again by themselves."""
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._changed.set)

    async def events(self, after: int) -> AsyncIterator[bytes]:
        """Events from a position on: first all that a client there lacks, then every update."""
        self.clients += 1
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll())
        try:
            yield OPENING
            if after > self.run.view.seq:
                # A position beyond the journal: the folder holds another run than the client has seen.
                yield b"event: reset\ndata: {}\n\n"
                return
            sent = await asyncio.to_thread(self.run.since, after)
            yield sent.body
            while not self._is_closed:
                changed = self._changed
                newer = self.run.newer(sent.revision)
                if newer is None:
                    newer = [await asyncio.to_thread(self.run.since, sent.seq)]
                for sent in newer:
                    yield sent.body
                if not newer and not await self._is_changed(changed):
                    yield b": still here\n\n"
        finally:
            self.clients -= 1
            if not self.clients and self._poller is not None:
                self._poller.cancel()
                self._poller = None

    async def _is_changed(self, changed: asyncio.Event) -> bool:
        """Wait for a change; False if there was none for so long that the connection needs a sign of life."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(changed.wait(), HEARTBEAT_S)
        return changed.is_set()

    async def _poll(self) -> None:
        while True:
            began = time.monotonic()
            try:
                is_changed = await asyncio.to_thread(self.run.refresh)
            except Exception:
                # A defect must not leave pages that look live: they keep what they have, and the trace is in the log.
                log.exception("the page cannot follow %s", self.run.folder.path)
                is_changed = False
            if is_changed:
                changed, self._changed = self._changed, asyncio.Event()
                changed.set()
            took = time.monotonic() - began
            least = POLL_S if self.run.view.facts.stopped is None else OVER_S
            await asyncio.sleep(max(least, REST * took))
