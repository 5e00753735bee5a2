"""SIGTERM: Kubernetes and Slurm send it to the processes of a node before they kill them.

Only the agent acts on it: Kubernetes signals one process of a container, Slurm all of them, so workers ignore it
(`node/newborn.py`). Without this source SIGTERM drains the agent; a pool drains a node by an order, never by a signal.
"""

import asyncio
import signal

from spotlight.core.clock import Clock
from spotlight.core.work import NoticeKind
from spotlight.node.notices.notice import Notice, WatchedSource

GRACE_S = 15.0
"""GKE's grace for pods on spot nodes. Kubernetes' default is 30 s; Slurm has GraceTime of the partition or QOS."""


class Sigterm(WatchedSource):
    """The first SIGTERM is an imminent notice; later ones do not move its deadline, and none withdraws it.

    From the first poll on it replaces the event loop's handler of SIGTERM; after `close` the default action returns.
    Needs the main thread.
    """

    name = "sigterm"
    pause_s = 0.0

    def __init__(self, clock: Clock, grace_s: float = GRACE_S) -> None:
        """`grace_s` is the time from SIGTERM to SIGKILL."""
        self._clock = clock
        self._grace_s = grace_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._received = asyncio.Event()
        self._notice: Notice | None = None

    async def poll(self) -> Notice | None:
        if self._loop is None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, self._signalled)
            self._loop = loop
        await self._received.wait()
        self._received.clear()
        return self._notice

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_signal_handler(signal.SIGTERM)
            self._loop = None

    def _signalled(self) -> None:
        if self._notice is None:
            deadline = self._clock.now() + self._grace_s
            self._notice = Notice(kind=NoticeKind.IMMINENT, source=self.name, deadline=deadline)
        self._received.set()
