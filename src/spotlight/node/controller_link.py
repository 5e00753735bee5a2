"""An agent's link to the controller: connects, and connects again within the grace when the connection breaks.

CONNECTING --Welcome--> CONNECTED --broken or silent--> CONNECTING --grace over or Rejected--> ENDED
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec

from spotlight.core import messages as m
from spotlight.core import wire
from spotlight.core.errors import EnvironmentProblem
from spotlight.core.link import Link, LinkError
from spotlight.core.link_stream import LinkStream
from spotlight.core.tls import WrongFingerprint, open_pinned, split_address
from spotlight.core.types import WorkerId

CONNECT_S = 5.0
"""Time limit for one attempt to connect."""
PAUSE_FIRST_S = 0.05
PAUSE_MOST_S = 2.0
"""The pause doubles per failed attempt, so that a thousand agents do not hammer a controller that comes back."""


class NodeRefused(EnvironmentProblem):
    """The controller refuses this node for good."""


class ControllerLink:
    """`connect`, then `frames` until the link is lost; `send` at any time between."""

    def __init__(self, address: str, hello: m.NodeHello, grace_s: float, fingerprint: str = "") -> None:
        """`address` is the path of a unix socket, or host:port; with a `fingerprint` the connection is TLS."""
        self._address = address
        self._fingerprint = fingerprint
        self._hello = hello
        self._grace_s = grace_s
        self._clock = asyncio.get_running_loop().time
        self._stream = LinkStream(Link(self._clock(), grace_s), self._clock)
        self._reader: asyncio.StreamReader | None = None
        self.end = ""
        """Reason why `frames` has ended."""

    async def connect(self) -> None:
        """Introduce the node; raises OSError if nothing listens, and NodeRefused if the controller does not want it."""
        await self._connect(None)

    def send(self, message: m.AnyMessage, worker: WorkerId | None = None, blob: bytes = b"") -> None:
        self._stream.send(m.Envelope(worker, message), blob)

    async def drained(self) -> None:
        """Wait while the controller reads slower than this node writes."""
        await self._stream.drained()

    async def frames(self) -> AsyncIterator[tuple[m.Envelope, bytes]]:
        """What the controller sends, over all connections; ends with the link, and `end` says why."""
        alive = asyncio.create_task(self._stream.keep_alive())
        try:
            while True:
                while (frame := await self._next()) is not None:
                    yield frame
                if not await self._reconnected():
                    return
        finally:
            alive.cancel()

    async def close(self) -> None:
        """Write what is left, and close the connection."""
        with contextlib.suppress(OSError):
            await asyncio.wait_for(self._stream.drained(), CONNECT_S)
        self._stream.lose()

    async def _next(self) -> tuple[m.Envelope, bytes] | None:
        assert self._reader is not None
        try:
            return await self._stream.read(self._reader)
        except (wire.WireError, LinkError):
            # What follows cannot be trusted; a new connection starts from a known frame.
            return None

    async def _reconnected(self) -> bool:
        self._stream.broke()
        pause = PAUSE_FIRST_S
        while not self._stream.link.is_over(self._clock()):
            try:
                await self._connect(self._stream.link.received)
                return True
            except (OSError, TimeoutError, wire.WireError):
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_MOST_S)
            except (NodeRefused, LinkError, WrongFingerprint) as error:
                self.end = str(error)
                break
        self.end = self.end or f"the controller could not be reached for {self._grace_s:g} s"
        self._stream.lose()
        return False

    async def _connect(self, received: int | None) -> None:
        reader, writer = await asyncio.wait_for(_opened(self._address, self._fingerprint), CONNECT_S)
        try:
            wire.write(writer, m.Envelope(None, msgspec.structs.replace(self._hello, received=received)))
            reply = await asyncio.wait_for(wire.read(reader), CONNECT_S)
            match reply:
                case (m.Envelope(message=m.Welcome(received=theirs)), _):
                    self._stream.attach(reader, writer, theirs)
                    self._reader = reader
                case (m.Envelope(message=m.Rejected(reason=reason)), _):
                    raise NodeRefused(reason)
                case _:
                    raise ConnectionResetError("the controller closed the connection before its reply")
        except BaseException:
            writer.close()
            raise


async def _opened(address: str, fingerprint: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.startswith("/"):
        return await asyncio.open_unix_connection(address, limit=wire.STREAM_LIMIT)
    host, port = split_address(address)
    if fingerprint:
        return await open_pinned(host, port, fingerprint, limit=wire.STREAM_LIMIT)
    return await asyncio.open_connection(host, port, limit=wire.STREAM_LIMIT)
