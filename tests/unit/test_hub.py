"""The hub: a waiter is woken by its own condition, by nothing less, and by a failure."""

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


class HubNode:
    """A hub and one node whose workers join and leave as the test prescribes."""

    def __init__(self) -> None:
        dispatcher, self._node = dispatcher_with(SlotClass.RESERVED)
        self.hub = Hub(dispatcher, RealClock(), lambda outgoing: None)

    def join(self, worker: WorkerId) -> None:
        hello = m.Hello(schema=SCHEMA, code="", node=self._node, slot_class=SlotClass.RESERVED, rows=1, pid=1)
        self.hub.receive(self._node, m.Envelope(worker, hello))

    def leave(self, worker: WorkerId) -> None:
        self.hub.receive(self._node, m.Envelope(None, m.Gone(worker=worker, cause="killed")))

    def is_here(self, worker: WorkerId) -> Callable[[], bool]:
        return lambda: worker in self.hub.dispatcher.directory.workers


def run_scenario(scenario: Callable[[HubNode], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await scenario(HubNode())

    run_virtually(main())


async def settle() -> None:
    """Let every woken waiter run."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_each_waiter_is_woken_by_its_own_condition_only():
    async def scenario(node: HubNode) -> None:
        first = asyncio.create_task(node.hub.until(node.is_here(FIRST)))
        second = asyncio.create_task(node.hub.until(node.is_here(SECOND)))
        await settle()
        node.join(SECOND)
        await settle()
        assert (first.done(), second.done()) == (False, True)
        node.join(FIRST)
        await settle()
        assert first.done()

    run_scenario(scenario)


def test_condition_that_holds_only_briefly_does_not_end_the_wait():
    async def scenario(node: HubNode) -> None:
        waiting = asyncio.create_task(node.hub.until(node.is_here(FIRST)))
        await settle()
        node.join(FIRST)
        node.leave(FIRST)
        await settle()
        assert not waiting.done()
        node.join(FIRST)
        await settle()
        assert waiting.done()

    run_scenario(scenario)


def test_cancelled_waiter_does_not_keep_the_others_from_being_woken():
    async def scenario(node: HubNode) -> None:
        waiting = [asyncio.create_task(node.hub.until(node.is_here(FIRST))) for _ in range(2)]
        await settle()
        waiting[0].cancel()
        await settle()
        node.join(FIRST)
        await settle()
        assert [task.cancelled() for task in waiting] == [True, False]
        assert waiting[1].done()

    run_scenario(scenario)


def test_failure_is_raised_in_current_and_in_later_waits():
    async def scenario(node: HubNode) -> None:
        waiting = asyncio.create_task(node.hub.until(node.is_here(FIRST)))
        await settle()
        node.hub.fail(Stopped("the disk is full"))
        with pytest.raises(Stopped, match="the disk is full"):
            await waiting
        with pytest.raises(Stopped, match="the disk is full"):
            await node.hub.until(node.is_here(SECOND))

    run_scenario(scenario)
