"""A story whose spot node reads its notices from a fake metadata service, in virtual time.

The service is the tests' own, over connections in memory; watchers, agent, controller and scheduler are the product's.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

import pytest
from metadata_server import MetadataServer
from story import Story

from spotlight.control.scheduler.state import Standing
from spotlight.core.events import WorkerJoined
from spotlight.node.notices.config import NoticesConfig
from spotlight.node.notices.notice import WatchedSource
from spotlight.node.notices.notice_sources import made
from spotlight.node.notices.watch import watch_all
from spotlight.sim.virtual_loop import EPOCH_S, VirtualClock

NODE = "spot-1"


class MemoryWriter:
    """The writing end of a connection in memory."""

    def __init__(self, to: asyncio.StreamReader) -> None:
        self._to = to
        self.transport = self

    def write(self, data: bytes) -> None:
        self._to.feed_data(data)

    async def drain(self) -> None:
        pass

    def close(self) -> None:
        self._to.feed_eof()

    def abort(self) -> None:
        self._to.set_exception(ConnectionResetError("reset by the service"))


class VirtualCloud(MetadataServer):
    """Listens in memory, by the virtual clock."""

    def wall(self) -> float:
        return EPOCH_S + asyncio.get_event_loop().time() + self.skew_s

    async def connect(self, host: str, port: int, **_: object) -> tuple[asyncio.StreamReader, MemoryWriter]:
        """In place of `asyncio.open_connection`."""
        here, there = asyncio.StreamReader(), asyncio.StreamReader()
        serving = asyncio.create_task(self._serve(there, MemoryWriter(here)))
        self._open.add(serving)
        return here, MemoryWriter(there)


class CloudStory(Story):
    """One spot node, whose agent watches these sources."""

    def __init__(self, sources: Sequence[str], patch: pytest.MonkeyPatch, **config: Any) -> None:
        super().__init__(spot=1, **config)
        self._names = sources
        self._patch = patch

    def __enter__(self) -> Self:
        super().__enter__()
        self.cloud = VirtualCloud()
        self._patch.setattr(asyncio, "open_connection", self.cloud.connect)
        self.until(lambda: self.recorded(WorkerJoined, node="spot-1.1"))
        self.watch = self._loop.create_task(self._read_notices())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [self.watch, *self.cloud._open]
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        super().__exit__(kind, error, trace)
        self._patch.undo()

    @property
    def now(self) -> float:
        return self._loop.time()

    def standing(self) -> Standing:
        return self.hub.dispatcher.scheduler.standing(self.worker(NODE))

    def does(self, act: Callable[[], Any]) -> None:
        """Act within the loop."""

        async def acting() -> None:
            done = act()
            if asyncio.iscoroutine(done):
                await done

        self._loop.run_until_complete(acting())

    def seconds_until(self, standing: Standing) -> float:
        """Virtual seconds until the scheduler uses the worker so."""
        began = self.now
        self.until(lambda: self.standing() is standing)
        return self.now - began

    def kill_machine(self) -> None:
        """Kill the node and its agent's watch; the node returns without one."""
        self.watch.cancel()
        self.kill(NODE)

    async def _read_notices(self) -> None:
        """As the agent's process does."""
        clock = VirtualClock(self._loop)
        config = NoticesConfig(sources=list(self._names), metadata_url="http://cloud")
        sources: list[WatchedSource] = [source for name in self._names for source in made(name, config, clock)]
        async with aclosing(watch_all(sources)) as notices:
            async for notice in notices:
                self.world.nodes[NODE].warn(notice)
