"""Transport between simulated machines and the controller: encoded bytes, or the message objects themselves.

Storms and stories encode, so that a value that the schema cannot carry fails and no object is shared. Long simulations
pass the frozen messages on, at no cost.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from spotlight.core import messages as m

Frame: TypeAlias = m.Envelope | None
"""None is the end of a connection."""
Carry: TypeAlias = Callable[[m.Envelope], m.Envelope]
HANG_UP: Frame = None


def as_bytes() -> Carry:
    """Encode and decode each message, as on a socket."""
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(m.Envelope).decode
    return lambda envelope: decode(encode(envelope))


class Pipe:
    """One direction of a connection: delayed, in order; `cut` loses the messages in transit."""

    def __init__(self, delay: Callable[[], float], deliver: Callable[[Frame, bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._delay = delay
        self._deliver = deliver
        self._in_transit: deque[tuple[Frame, bytes]] = deque()
        self._last = 0.0
        self._is_cut = False

    def put(self, frame: Frame, blob: bytes) -> None:
        if self._is_cut:
            return
        loop = self._loop
        arrives_at = loop.time() + self._delay()
        if arrives_at > self._last:
            self._last = arrives_at
        self._in_transit.append((frame, blob))
        loop.call_at(self._last, self._next)

    def stall(self, seconds: float) -> None:
        """Delay messages from now on by at least `seconds`."""
        self._last = max(self._last, self._loop.time() + seconds)

    def drop_all(self) -> None:
        self._in_transit.clear()

    def cut(self) -> None:
        self.drop_all()
        self._is_cut = True
        self._deliver = _discard

    def _next(self) -> None:
        if self._in_transit:
            self._deliver(*self._in_transit.popleft())


def _discard(frame: Frame, blob: bytes) -> None:
    pass
