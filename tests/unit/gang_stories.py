"""A reserved node for tests of the gang, in virtual time."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from dispatch_stories import dispatcher_with

from spotlight.control.outside import Outgoing
from spotlight.controller.gang import Gang
from spotlight.controller.gang_members import GangSettings
from spotlight.controller.hub import Hub
from spotlight.core import messages as m
from spotlight.core.events import SCHEMA
from spotlight.core.types import WorkerId
from spotlight.core.work import SlotClass
from spotlight.sim.virtual_loop import VirtualClock, VirtualLoop

TIMEOUT_S = 100.0
FIRST, SECOND = WorkerId("reserved-1.1/0.1"), WorkerId("reserved-1.1/0.2")
"""Two workers of one slot, one after the other."""
NEIGHBOUR, THIRD = WorkerId("reserved-1.1/1.1"), WorkerId("reserved-1.1/2.1")
"""Workers of the node's second and third slot."""


class Node:
    """A reserved node whose training worker replies as the test prescribes."""

    def __init__(self, ranks: int = 1, start_s: float = math.inf, elastic: bool = False) -> None:
        dispatcher, self._node = dispatcher_with(SlotClass.RESERVED)
        self.orders: asyncio.Queue[m.AnyMessage] = asyncio.Queue()
        self.killed: list[WorkerId] = []
        self.hub = Hub(dispatcher, VirtualClock(asyncio.get_running_loop()), self._take)
        self.hub.kill = self._kill
        self.dies_when_killed = True
        slots = tuple(f"reserved-1/{slot}" for slot in range(ranks))
        self.gang = Gang(self.hub, GangSettings(timeout_s=TIMEOUT_S, slots=slots, start_s=start_s, elastic=elastic))

    def receive(self, worker: WorkerId | None, message: m.AnyMessage) -> None:
        self.hub.receive(self._node, m.Envelope(worker, message))

    def join(self, worker: WorkerId, kind: str = "") -> None:
        reserved = SlotClass.RESERVED
        hello = m.Hello(
            schema=SCHEMA, code="", node=self._node, slot_class=reserved, rows=1, pid=1, trains=True, kind=kind
        )
        self.receive(worker, hello)

    async def restored(self, worker: WorkerId) -> None:
        """Bring up a restored, idle gang at step 0."""
        self.join(worker)
        ordered = asyncio.create_task(self.gang.restore(0, ""))
        order = await self.orders.get()
        assert isinstance(order, m.Restore)
        self.receive(worker, m.Saved(step=0, path="", restored=True))
        await ordered

    async def formed(self, workers: Sequence[WorkerId], steps: Sequence[int] = ()) -> None:
        """Reply to the orders that form a gang of these workers, which hold this number of steps."""
        opening = await self.orders.get()
        assert isinstance(opening, m.FormGang)
        if opening.ranks > 1:
            assert (opening.rank, opening.store) == (0, "")
            self.receive(workers[0], m.StoreOpened(epoch=opening.epoch, store="127.0.0.1:1"))
            opening = await self.orders.get()
            for _ in workers[1:]:
                assert isinstance(await self.orders.get(), m.FormGang)
        for worker, held in zip(workers, steps or [0] * len(workers), strict=True):
            self.receive(worker, m.GangFormed(epoch=opening.epoch, steps=held))

    async def restored_ranks(self, workers: Sequence[WorkerId], step: int = 0, path: str = "") -> None:
        """Bring up a restored, idle gang of these workers."""
        for worker in workers:
            self.join(worker)
        ordered = asyncio.create_task(self.gang.restore(step, path))
        await self.formed(workers)
        for _ in workers:
            assert isinstance(await self.orders.get(), m.Restore)
        for worker in workers:
            self.receive(worker, m.Saved(step=step, path=path, restored=True))
        await ordered

    def _take(self, outgoing: Outgoing) -> None:
        if isinstance(outgoing.message, m.FormGang | m.Train | m.Publish | m.Save | m.Restore):
            self.orders.put_nowait(outgoing.message)

    async def _kill(self, worker: WorkerId) -> None:
        self.killed.append(worker)
        if self.dies_when_killed:
            self.receive(None, m.Gone(worker=worker, cause="killed by SIGKILL"))


def run_scenario(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the scenario in virtual time."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


def train(step: int) -> m.Train:
    return m.Train(step=step, iteration=step, items=(), last=True)


def stepped(step: int) -> m.Stepped:
    return m.Stepped(step=step, digest=f"theta-{step}", figures={})
