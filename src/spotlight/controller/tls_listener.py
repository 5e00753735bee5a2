"""A TLS port: counts every connection before its handshake, and serves those that the gate admits."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

from spotlight.controller.gate import Gate, source_of
from spotlight.core import wire
from spotlight.core.errors import EnvironmentProblem
from spotlight.core.tls import HANDSHAKE_S, Identity

BACKLOG = 128
PAUSE_S = 0.5
"""Pause after an accept that failed, as when the process has no file left."""


class Visitor:
    """One connection from another machine."""

    def __init__(self, host: str, gate: Gate, clock: Callable[[], float]) -> None:
        self.host = host
        """Address of the machine."""
        self.source = source_of(host)
        """What its attempts are counted by."""
        self._gate = gate
        self._clock = clock
        self.is_proved = False

    def proved(self) -> None:
        """The connection is one of the run's nodes."""
        if not self.is_proved:
            self.is_proved = True
            self._gate.proved(self.source)

    def failed(self) -> bool:
        """Count a failed attempt; True if it is to be recorded."""
        return self._gate.failed(self.source, self._clock())

    def left(self) -> None:
        self._gate.left(self.source, self.is_proved)


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, Visitor], Awaitable[None]]
Failed = Callable[[Visitor, str], None]


class TlsListener:
    """`start`, then `close`; `serve` handles a connection, `failed` receives each whose handshake fails."""

    def __init__(self, identity: Identity, gate: Gate, serve: Serve, failed: Failed) -> None:
        self._context = identity.server_context()
        self._gate = gate
        self._serve = serve
        self._failed = failed
        self._socket: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which is free to choose for 0."""
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise EnvironmentProblem(
                f"cluster.listen is {host}:{port}, but that address cannot be used ({error.strerror or error}); free "
                "the port, or choose an address of this machine and another port."
            ) from error
        self._socket.setblocking(False)
        self._spawn(self._accept_forever(self._socket))
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._socket is not None:
            self._socket.close()

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept_forever(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(PAUSE_S)
                continue
            visitor = Visitor(address[0], self._gate, loop.time)
            if self._gate.admits(visitor.source, loop.time()):
                self._spawn(self._greet(connection, visitor))
            else:
                connection.close()

    async def _greet(self, connection: socket.socket, visitor: Visitor) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=wire.STREAM_LIMIT, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )
            await self._serve(reader, asyncio.StreamWriter(transport, protocol, reader, loop), visitor)
        except (OSError, ssl.SSLError) as error:
            self._failed(visitor, f"no TLS handshake ({type(error).__name__})")
        finally:
            # The transport closes the socket: closed here, its number could be another's before the loop forgets it.
            visitor.left()
