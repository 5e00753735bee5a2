"""The hub: whoever waits is woken by what it waits for, by nothing less, and by a failure."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from dispatch_stories import dispatcher_with

from spotlight.controller.hub import Hub
from spotlight.core import messages as m
from spotlight.core.clock import RealClock
from spotlight.core.errors import Stopped
from spotlight.core.events import SCHEMA
from spotlight.core.types import WorkerId
from spotlight.core.work import SlotClass
from spotlight.sim.virtual_loop import run_virtually

FIRST, SECOND = WorkerId("reserved-1.1/0.1"), WorkerId("reserved-1.1/1.1")


class Door:
    """A hub, and one node whose workers come and go as the test says."""

    def __init__(self) -> None:
        dispatcher, self._node = dispatcher_with(SlotClass.RESERVED)
        self.hub = Hub(dispatcher, RealClock(), lambda outgoing: None)

    def comes(self, worker: WorkerId) -> None:
        hello = m.Hello(schema=SCHEMA, code="", node=self._node, slot_class=SlotClass.RESERVED, rows=1, pid=1)
        self.hub.receive(self._node, m.Envelope(worker, hello), b"")

    def goes(self, worker: WorkerId) -> None:
        self.hub.receive(self._node, m.Envelope(None, m.Gone(worker=worker, cause="killed")), b"")

    def is_here(self, worker: WorkerId) -> Callable[[], bool]:
        return lambda: worker in self.hub.dispatcher.directory.workers


def told(story: Callable[[Door], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await story(Door())

    run_virtually(main())


async def turns() -> None:
    """Everybody who was woken has had their turn."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_each_waits_for_their_own_and_no_other_message_ends_it():
    async def story(door: Door) -> None:
        first = asyncio.create_task(door.hub.until(door.is_here(FIRST)))
        second = asyncio.create_task(door.hub.until(door.is_here(SECOND)))
        await turns()
        door.comes(SECOND)
        await turns()
        assert (first.done(), second.done()) == (False, True)
        door.comes(FIRST)
        await turns()
        assert first.done()

    told(story)


def test_what_was_so_for_a_moment_only_is_waited_for_again():
    async def story(door: Door) -> None:
        waiting = asyncio.create_task(door.hub.until(door.is_here(FIRST)))
        await turns()
        door.comes(FIRST)
        door.goes(FIRST)
        await turns()
        assert not waiting.done()
        door.comes(FIRST)
        await turns()
        assert waiting.done()

    told(story)


def test_one_who_gives_up_waiting_keeps_nobody_else_from_being_woken():
    async def story(door: Door) -> None:
        waiting = [asyncio.create_task(door.hub.until(door.is_here(FIRST))) for _ in range(2)]
        await turns()
        waiting[0].cancel()
        await turns()
        door.comes(FIRST)
        await turns()
        assert [task.cancelled() for task in waiting] == [True, False]
        assert waiting[1].done()

    told(story)


def test_failure_is_raised_where_somebody_waits_and_where_somebody_begins_to():
    async def story(door: Door) -> None:
        waiting = asyncio.create_task(door.hub.until(door.is_here(FIRST)))
        await turns()
        door.hub.fail(Stopped("the disk is full"))
        with pytest.raises(Stopped, match="the disk is full"):
            await waiting
        with pytest.raises(Stopped, match="the disk is full"):
            await door.hub.until(door.is_here(SECOND))

    told(story)
