"""Both ends of a simulated node's link, over connections that are cut and half-opened: the product's `Link`, with
timers for bytes.

    OPEN --cut--> BROKEN --away--> OPEN          frames in transit are lost
    OPEN --half_open--> SWALLOWING --SILENCE_S--> BROKEN --away--> OPEN
    BROKEN --grace--> OVER: the controller loses the node, and the node ends itself
"""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol

from spotlight.core.link import GRACE_S, SILENCE_S, Link
from spotlight.sim.frames import HANG_UP, Frame, Pipe


class ConnectionState(StrEnum):
    """States of the module docstring's diagram."""

    OPEN = "open"
    SWALLOWING = "swallowing"
    BROKEN = "broken"
    OVER = "over"


class LinkEvents(Protocol):
    """What the ends of a link notice."""

    def broke(self) -> None:
        """The controller sees the connection break."""

    def resumed(self) -> None: ...

    def over(self) -> None:
        """The grace has passed."""


class NoEvents:
    """Events of a dead node's link."""

    def broke(self) -> None:
        pass

    def resumed(self) -> None:
        pass

    def over(self) -> None:
        pass


class SimLink:
    """`up` and `down` are used like pipes."""

    def __init__(
        self,
        latency_s: Callable[[], float],
        to_controller: Callable[[Frame, bytes], None],
        to_node: Callable[[Frame, bytes], None],
        events: LinkEvents,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: LinkEvents = events
        self.state = ConnectionState.OPEN
        self._connection = 0
        """Number of the current connection: what was sent on an earlier one never arrives."""
        now = self._loop.time()
        agent: Link[tuple[Frame, bytes]] = Link(now)
        controller: Link[tuple[Frame, bytes]] = Link(now)
        self.up = Direction(self, agent, controller, latency_s, to_controller)
        self.down = Direction(self, controller, agent, latency_s, to_node)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def connection(self) -> int:
        return self._connection

    def cut(self, away_s: float) -> None:
        """Break the connection; the node reaches the controller again after `away_s`, or never within its grace."""
        if self.state in (ConnectionState.OPEN, ConnectionState.SWALLOWING):
            self._break(away_s)

    def half_open(self, away_s: float) -> None:
        """Swallow everything in both directions, until both ends notice the silence."""
        if self.state is ConnectionState.OPEN:
            self.state = ConnectionState.SWALLOWING
            self._after(SILENCE_S, self._break, max(0.0, away_s - SILENCE_S))

    def end(self) -> None:
        """The node is dead: nothing is resumed, and no reference leads back to it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._events = NoEvents()

    def _break(self, away_s: float) -> None:
        self.state = ConnectionState.BROKEN
        self._connection += 1
        now = self._loop.time()
        for direction in (self.up, self.down):
            direction.sender.broke(now)
        self._events.broke()
        if away_s < GRACE_S:
            self._after(away_s, self._resume)
        else:
            self._after(GRACE_S, self._give_up)

    def _resume(self) -> None:
        self._connection += 1
        self.state = ConnectionState.OPEN
        now, heads = self._loop.time(), (self.down.sender.received, self.up.sender.received)
        for direction, received in zip((self.up, self.down), heads, strict=True):
            for kept in direction.sender.resume(received, now):
                direction.write(kept.number, *kept.content)
        self._events.resumed()

    def _give_up(self) -> None:
        self.state = ConnectionState.OVER
        for direction in (self.up, self.down):
            direction.sender.lose()
        self._events.over()

    def _after(self, seconds: float, act: Callable[..., None], *arguments: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, act, *arguments)


class Direction:
    """One direction of a link, with the interface of a `Pipe`."""

    def __init__(
        self,
        link: SimLink,
        sender: Link[tuple[Frame, bytes]],
        receiver: Link[tuple[Frame, bytes]],
        latency_s: Callable[[], float],
        deliver: Callable[[Frame, bytes], None],
    ) -> None:
        self.sender = sender
        self._receiver = receiver
        self._link = link
        self._deliver = deliver
        # The pipe's frames are numbered envelopes here.
        self._pipe: Any = Pipe(latency_s, self._arrived)
        self._is_lost = False
        self._loop = asyncio.get_running_loop()
        self.stall = self._pipe.stall

    def put(self, frame: Frame, blob: bytes) -> None:
        if frame is HANG_UP:
            self._hang_up()
            return
        kept = self.sender.send((frame, blob), len(blob))
        self.write(kept.number, frame, blob)

    def write(self, number: int, frame: Frame, blob: bytes) -> None:
        if self._link.state is not ConnectionState.BROKEN:
            self._pipe.put((self._link.connection, number, self.sender.received, frame), blob)

    def drop_all(self) -> None:
        """Lose everything in transit, and all that follows on this connection: the node is dead."""
        self._pipe.drop_all()
        self._is_lost = True

    def cut(self) -> None:
        """Deliver nothing from now on: the receiver is dead."""
        self._pipe.cut()
        self._deliver = _discard
        self._link.end()

    def _hang_up(self) -> None:
        """The sender is dead; what it has sent arrives first, if there is a connection."""
        if self._link.state is ConnectionState.OPEN:
            self._pipe.put((self._link.connection, 0, self.sender.received, HANG_UP), b"")
        else:
            self._loop.call_soon(self._deliver, HANG_UP, b"")

    def _arrived(self, sent: Any, blob: bytes) -> None:
        connection, number, received, frame = sent
        link, now = self._link, self._loop.time()
        if frame is HANG_UP:
            self._deliver(HANG_UP, b"")
        elif self._is_lost or connection != link.connection or link.state is not ConnectionState.OPEN:
            return
        elif self._receiver.accept(number, received, now):
            self._deliver(frame, blob)
            if self._receiver.owes_acknowledgement:
                self._receiver.wrote(now)
                self.sender.accept(0, self._receiver.received, now)


def _discard(frame: Frame, blob: bytes) -> None:
    pass
