"""One end of the link between an agent and the controller, which outlives its connections.

    CONNECTED --connection broken or silent--> BROKEN --resumed--> CONNECTED
                                                  `--grace over, or refused by the peer--> LOST

Frames are numbered from 1 in each direction. Each frame also carries the number of the last one received, which
acknowledges all up to it. A frame is kept until it is acknowledged; after a reconnection both ends exchange what they
have received, and send the rest again. Frames with the number 0 are outside of this order: the handshake and pings.

Invariant (tests/property/test_link.py): wherever connections are cut, and whatever is delayed or delivered twice, the
peer receives a prefix of the sent frames, each once and in order; all of them if a connection lasts.
"""

from collections import deque
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from spotlight.core.errors import SpotlightError

GRACE_S = 20.0
"""Seconds after a break in which the link can be resumed."""
PING_S = 1.0
"""An end that has sent nothing for this long sends a ping."""
SILENCE_S = 5.0
"""A connection on which nothing has arrived for this long is broken: half-open connections report nothing."""
ACKNOWLEDGE_EVERY = 32
"""Frames received before they are acknowledged by a frame of its own."""
KEPT_LIMIT = 256 << 20
"""Bytes of frames that wait for an acknowledgement: a peer that reads too slowly must not take all memory."""


class LinkState(StrEnum):
    """States of the module docstring's diagram."""

    CONNECTED = "connected"
    BROKEN = "broken"
    LOST = "lost"


class LinkError(SpotlightError):
    """The peer's numbers do not fit: frames are missing, or it is the end of another link."""


Content = TypeVar("Content")


class KeptFrame(NamedTuple, Generic[Content]):
    """A numbered frame, until the peer acknowledges it."""

    number: int
    content: Content
    size: int


class Link(Generic[Content]):
    """Numbers, acknowledgements and deadlines of one end; without I/O, time is an argument.

    The frames' content is bytes on sockets, and messages in the simulator.
    """

    def __init__(self, now: float, grace_s: float = GRACE_S) -> None:
        self.state = LinkState.CONNECTED
        self.received = 0
        """Number of the last frame received."""
        self.kept_bytes = 0
        self._grace_s = grace_s
        self._sent = 0
        self._kept: deque[KeptFrame[Content]] = deque()
        self._owed = 0
        """Frames received since the peer was last told."""
        self._heard_at = now
        self._sent_at = now
        self._broken_at = now

    def send(self, content: Content, size: int) -> KeptFrame[Content]:
        """Number a frame and keep it; it is written now if the link is connected, else after it is resumed."""
        self._sent += 1
        frame = KeptFrame(self._sent, content, size)
        self._kept.append(frame)
        self.kept_bytes += size
        return frame

    def wrote(self, now: float) -> None:
        """A frame was written, with the number of the last one received."""
        self._sent_at = now
        self._owed = 0

    def accept(self, number: int, received: int, now: float) -> bool:
        """Take the numbers of an arrived frame; True if it is the next one and is to be delivered.

        Raises LinkError if a frame is missing before it, or if the peer acknowledges what was never sent.
        """
        self._heard_at = now
        self._acknowledged(received)
        if not number or number <= self.received:
            return False
        if number > self.received + 1:
            raise LinkError(
                f"frame {number} arrived after frame {self.received}, so frames in between are lost; connect again."
            )
        self.received = number
        self._owed += 1
        return True

    def broke(self, now: float) -> None:
        """The connection is gone; the grace begins."""
        if self.state is LinkState.CONNECTED:
            self.state = LinkState.BROKEN
            self._broken_at = now

    def resume(self, received: int, now: float) -> list[KeptFrame[Content]]:
        """A new connection, whose peer has received this much; return the frames to send again."""
        if self.state is LinkState.LOST:
            raise LinkError("the link is lost, because its grace is over; start a new one.")
        self._acknowledged(received)
        if self._kept and self._kept[0].number > received + 1:
            raise LinkError(
                f"the peer has received {received} frames, but those before {self._kept[0].number} are no longer kept: "
                "it is the end of another link; start a new one."
            )
        self.state = LinkState.CONNECTED
        self._heard_at = now
        return list(self._kept)

    def lose(self) -> None:
        """Give the link up; nothing can be resumed."""
        self.state = LinkState.LOST
        self._kept.clear()
        self.kept_bytes = 0

    def is_over(self, now: float) -> bool:
        """Whether the grace has passed without a new connection."""
        return self.state is LinkState.BROKEN and now - self._broken_at >= self._grace_s

    def is_silent(self, now: float) -> bool:
        """Whether the connection counts as broken, because nothing arrived on it for too long."""
        return self.state is LinkState.CONNECTED and now - self._heard_at >= SILENCE_S

    @property
    def owes_acknowledgement(self) -> bool:
        return self._owed >= ACKNOWLEDGE_EVERY

    def owes_ping(self, now: float) -> bool:
        """Whether a ping is due: the peer must hear something, and must know what has arrived."""
        return self.owes_acknowledgement or now - self._sent_at >= PING_S

    @property
    def is_overfull(self) -> bool:
        return self.kept_bytes > KEPT_LIMIT

    def _acknowledged(self, received: int) -> None:
        if received > self._sent:
            raise LinkError(
                f"the peer acknowledges frame {received}, but only {self._sent} were sent: it is the end of another "
                "link; start a new one."
            )
        kept = self._kept
        while kept and kept[0].number <= received:
            self.kept_bytes -= kept.popleft().size
