"""A `Link` over asyncio streams, one connection at a time; both the controller and the agents use it."""

import asyncio
import contextlib
from collections.abc import Callable

from spotlight.core import messages as m
from spotlight.core import wire
from spotlight.core.link import PING_S, Link, LinkState


class LinkStream:
    """Writes and reads numbered frames. What is sent while the link is broken is written when it is resumed."""

    def __init__(
        self, link: Link[tuple[bytes, bytes]], clock: Callable[[], float], limits: wire.FrameLimits = wire.LIMITS
    ) -> None:
        self.link = link
        self._limits = limits
        self._clock = clock
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None
        self._acknowledged = asyncio.Event()

    def attach(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, received: int) -> None:
        """Continue on this connection, whose peer has received this many frames; an earlier one is closed."""
        frames = self.link.resume(received, self._clock())
        self._close()
        self._reader, self._writer = reader, writer
        for frame in frames:
            self._write(frame.content, frame.number)

    def send(self, envelope: m.Envelope, blob: bytes = b"") -> None:
        """Send without waiting; `drained` applies the peer's back-pressure."""
        if self.link.state is LinkState.LOST:
            return
        message = wire.encode(envelope)
        frame = self.link.send((message, blob), len(message) + len(blob))
        self._write(frame.content, frame.number)

    async def drained(self) -> None:
        """Wait until the connection takes more bytes, and the peer has acknowledged most of what was sent."""
        if self._writer is not None:
            # The reader reports the loss of the connection.
            with contextlib.suppress(OSError):
                await self._writer.drain()
        while self.link.is_overfull:
            self._acknowledged.clear()
            await self._acknowledged.wait()

    async def read(self, reader: asyncio.StreamReader) -> tuple[m.Envelope, bytes] | None:
        """The next frame to deliver; None once this connection is broken or replaced.

        Raises LinkError or WireError if the peer sends what does not belong here.
        """
        while (frame := await wire.read_numbered(reader, self._limits)) is not None:
            if reader is not self._reader:
                return None
            is_next = self.link.accept(frame.number, frame.received, self._clock())
            self._acknowledged.set()
            if self.link.owes_ping(self._clock()):
                self.ping()
            if is_next:
                return frame.envelope, frame.blob
        return None

    def ping(self) -> None:
        """Send a frame outside of the order, which acknowledges what has arrived."""
        self._write((wire.encode(m.Envelope(None, m.Ping())), b""), 0)

    def broke(self, reader: asyncio.StreamReader | None = None) -> bool:
        """The connection is gone; True if it was the current one."""
        if reader is not None and reader is not self._reader:
            return False
        self.link.broke(self._clock())
        self._close()
        return True

    def lose(self) -> None:
        self.link.lose()
        self._acknowledged.set()
        self._close()

    async def keep_alive(self) -> None:
        """Ping the peer, and close a connection on which nothing arrives: its reader then reports the break."""
        while self.link.state is not LinkState.LOST:
            await asyncio.sleep(PING_S / 2)
            now = self._clock()
            if self.link.is_silent(now) and self._writer is not None:
                self._writer.transport.abort()
            elif self.link.state is LinkState.CONNECTED and self.link.owes_ping(now):
                self.ping()

    def _write(self, content: tuple[bytes, bytes], number: int) -> None:
        writer = self._writer
        if writer is not None and not writer.is_closing():
            wire.write_numbered(writer, *content, (number, self.link.received))
            self.link.wrote(self._clock())

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = self._reader = None
