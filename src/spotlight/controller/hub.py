"""The controller's link to all nodes: feeds the dispatcher, sends its messages, wakes coroutines that wait.

One per run. Consumes messages and losses. The condition of an `until` is evaluated after every message, loss and tick,
and its waiter is woken only when it holds. The simulator drives the same class through `receive` and its own `send`;
`controller/door.py` is the real transport.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from spotlight.control.dispatch import Dispatcher
from spotlight.control.outside import Outgoing
from spotlight.controller.stall import StallWatch
from spotlight.core import messages as m
from spotlight.core.clock import Clock
from spotlight.core.types import NodeId, WorkerId

TICK_S = 0.25
"""Seconds between checks for silent workers and stragglers; a tenth of the shortest sensible silence."""


@dataclass(frozen=True, eq=False, slots=True)
class _Waiter:
    """A waiting coroutine."""

    condition: Callable[[], bool]
    woken: asyncio.Future[None]
    what: str | Callable[[], str]
    """Short description of what the run waits for; empty for background work."""


class Hub:
    """Delivers messages in and out; one event loop runs everything, so the dispatcher is never entered twice."""

    def __init__(self, dispatcher: Dispatcher, clock: Clock, send: Callable[[Outgoing], None]) -> None:
        self.dispatcher = dispatcher
        self.clock = clock
        self._send = send
        self.kill: Callable[[WorkerId], Awaitable[None]] = _no_kill
        """Kill a worker's process; set by the pool once it exists."""
        self.node_ended: Callable[[NodeId], None] = _ignore
        """The processes of a node have ended, as the pool has seen; set by the door."""
        self.tick_s = TICK_S
        self.watch: StallWatch | None = None
        self.unreachable: dict[NodeId, float] = {}
        """Nodes whose connection is broken for a moment, and since when: their workers are not silent, their leases go
        on."""
        self._waiters: list[_Waiter] = []
        self._failure: BaseException | None = None

    def receive(self, node: NodeId, envelope: m.Envelope) -> None:
        if self._failure is None:
            self.dispatcher.handle(node, envelope, self.clock.now())
            self._send_and_wake()

    def node_joined(self, hello: m.NodeHello) -> None:
        if self._failure is None:
            self.dispatcher.node_joined(hello)
            self.flush()

    def node_lost(self, node: NodeId, cause: str) -> None:
        if self._failure is None:
            self.dispatcher.node_lost(node, cause, self.clock.now())
            self.flush()

    def node_away(self, node: NodeId) -> None:
        """The node's connection is broken; it may be resumed within the grace."""
        self.unreachable.setdefault(node, self.clock.now())

    def node_back(self, node: NodeId) -> None:
        """The node's connection is resumed."""
        since = self.unreachable.pop(node, None)
        if since is not None and self._failure is None:
            self.dispatcher.setbacks.node_back(node, self.clock.now() - since)

    def _excuse(self, node: NodeId, now: float) -> None:
        for worker in self.dispatcher.directory.workers_of(node):
            self.dispatcher.scheduler.excuse(worker, now)

    def flush(self) -> None:
        """Serve standing pulls, send all outgoing messages, and wake waiters whose condition holds now."""
        self.dispatcher.serve(self.clock.now())
        self._send_and_wake()

    def _send_and_wake(self) -> None:
        dispatcher = self.dispatcher
        if dispatcher.outbox:
            send = self._send
            for outgoing in dispatcher.take_outbox():
                send(outgoing)
        if dispatcher.failure is not None:
            self.fail(dispatcher.failure)
        for waiter in self._waiters:
            if not waiter.woken.done() and waiter.condition():
                waiter.woken.set_result(None)

    def fail(self, failure: BaseException) -> None:
        """Fail every waiter with this error, so that nothing that dies in the background leaves the run hanging.

        Messages that arrive from now on are ignored: the failed decision may be half made, and only a restart, which
        releases everything, puts that right.
        """
        self._failure = self._failure or failure
        for waiter in self._waiters:
            if not waiter.woken.done():
                waiter.woken.set_result(None)

    async def until(self, condition: Callable[[], bool], what: str | Callable[[], str] = "") -> None:
        """Wait until the condition holds, evaluated after every change and once more by the waiter.

        `what` describes for people what the run waits for; background work leaves it empty.
        """
        while not condition():
            if self._failure is not None:
                raise self._failure
            waiter = _Waiter(condition, asyncio.get_running_loop().create_future(), what)
            self._waiters.append(waiter)
            try:
                await waiter.woken
            finally:
                self._waiters.remove(waiter)
        if self._failure is not None:
            raise self._failure

    def quiet_s(self) -> float:
        """Seconds since the last sign of progress."""
        return self.watch.since_sign_s if self.watch is not None else 0.0

    def waiting_for(self) -> str:
        """Short description of what the run waits for now, unavailable rewards included; empty if there is none."""
        named = [waiter.what if isinstance(waiter.what, str) else waiter.what() for waiter in self._waiters]
        return "; ".join(dict.fromkeys(filter(None, (*named, *self.dispatcher.setbacks.awaited_rewards()))))

    async def tick_forever(self) -> None:
        while True:
            await asyncio.sleep(self.tick_s)
            if self._failure is None:
                now = self.clock.now()
                for node in sorted(self.unreachable):
                    self._excuse(node, now)
                self.dispatcher.tick(now)
                self._send_and_wake()
                if self.watch is not None and (stalled := self.watch.tick(now)) is not None:
                    self.fail(stalled)


def _ignore(node: NodeId) -> None:
    """Default before there is a door: no node has connected."""


async def _no_kill(worker: WorkerId) -> None:
    """Default before there is a pool: the caller's own time limit ends its wait."""
