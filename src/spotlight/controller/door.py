"""Server that agents connect to: one link per node, which outlives its connections (`core/link.py`).

A node is lost when its link is: when the pool reports that its processes have ended, or after the grace. Until then
its workers keep their leases, and what is sent to them waits.

Invariant (tests/processes/test_run.py): a connection that breaks for less than the grace costs no worker, no
message and no step; a node that returns after the grace is refused, and ends itself.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from spotlight import __version__
from spotlight.control.dispatch import Outgoing
from spotlight.controller.hub import Hub
from spotlight.core import messages as m
from spotlight.core import wire
from spotlight.core.events import SCHEMA
from spotlight.core.link import GRACE_S, Link, LinkError
from spotlight.core.link_stream import LinkStream
from spotlight.core.types import NodeId

HANDSHAKE_S = 10.0
"""A client that has not introduced itself by then is dropped."""


@dataclass(eq=False)
class _Guest:
    """A node with its link."""

    stream: LinkStream
    watching: asyncio.Task[None]
    has_ended: bool = False
    """The pool has seen the end of its processes: nothing comes after what is on the way."""


class Door:
    """Accepts agents, delivers their frames to the hub, and sends the controller's."""

    def __init__(self, token: str, grace_s: float = GRACE_S) -> None:
        self.token = token
        self._grace_s = grace_s
        self._guests: dict[NodeId, _Guest] = {}
        self._servers: list[asyncio.AbstractServer] = []
        self._hub: Hub | None = None

    async def open(self, path: Path, hub: Hub) -> None:
        """Listen at a unix socket that only this user can open."""
        self._serve_for(hub)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._servers.append(await asyncio.start_unix_server(self._guarded(hub), str(path), limit=wire.STREAM_LIMIT))
        path.chmod(0o600)

    async def listen(self, host: str, port: int, hub: Hub) -> int:
        """Listen at a TCP port too; returns the port, which is free to choose for 0."""
        self._serve_for(hub)
        server = await asyncio.start_server(self._guarded(hub), host, port, limit=wire.STREAM_LIMIT)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def _serve_for(self, hub: Hub) -> None:
        self._hub = hub
        hub.node_ended = self._ended

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for guest in self._guests.values():
            guest.watching.cancel()
            guest.stream.lose()
        self._guests.clear()

    def send(self, outgoing: Outgoing) -> None:
        guest = self._guests.get(outgoing.node)
        if guest is None:
            return
        guest.stream.send(m.Envelope(outgoing.worker, outgoing.message), outgoing.blob)
        if guest.stream.link.is_overfull:
            self._lose(outgoing.node, "its agent does not read what it is sent")

    def _ended(self, node: NodeId) -> None:
        """The processes of the node are gone: it is lost once its last messages are read."""
        guest = self._guests.get(node)
        if guest is None:
            return
        guest.has_ended = True
        if self._hub is not None and node in self._hub.unreachable:
            self._lose(node, "connection lost")

    def _guarded(self, hub: Hub) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self._serve(hub, reader, writer)
            except (ConnectionError, asyncio.CancelledError):
                pass
            except (wire.WireError, LinkError, TimeoutError) as error:
                # An unknown client or a damaged agent: the connection is closed, the run continues.
                hub.dispatcher.setbacks.note("controller", str(error) or "a client did not introduce itself")
            except Exception as error:
                hub.fail(error)
            finally:
                writer.close()

        return serve

    async def _serve(self, hub: Hub, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await asyncio.wait_for(wire.read(reader), HANDSHAKE_S)
        if first is None or not isinstance(first[0].message, m.NodeHello):
            return
        hello = first[0].message
        problem = self._problem(hello)
        if problem:
            wire.write(writer, m.Envelope(None, m.Rejected(reason=problem)))
            await writer.drain()
            return
        guest = self._welcomed(hub, hello, reader, writer)
        try:
            while (received := await guest.stream.read(reader)) is not None:
                hub.receive(hello.node, *received)
        finally:
            if guest.stream.broke(reader) and self._guests.get(hello.node) is guest:
                hub.unreachable.add(hello.node)
                if guest.has_ended:
                    with contextlib.suppress(RuntimeError):
                        self._lose(hello.node, "connection lost")

    def _welcomed(
        self, hub: Hub, hello: m.NodeHello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> _Guest:
        """The node's link on this connection, new or resumed."""
        known = self._guests.get(hello.node)
        received = known.stream.link.received if known is not None else 0
        wire.write(writer, m.Envelope(None, m.Welcome(received=received)))
        if known is not None:
            assert hello.received is not None
            known.stream.attach(reader, writer, hello.received)
            hub.unreachable.discard(hello.node)
            return known
        clock = asyncio.get_running_loop().time
        stream = LinkStream(Link(clock(), self._grace_s), clock)
        stream.attach(reader, writer, 0)
        guest = self._guests[hello.node] = _Guest(stream, asyncio.create_task(self._watch(hello.node, stream)))
        hub.node_joined(hello)
        return guest

    async def _watch(self, node: NodeId, stream: LinkStream) -> None:
        """Lose the node when its grace is over."""
        alive = asyncio.create_task(stream.keep_alive())
        try:
            clock = asyncio.get_running_loop().time
            while not stream.link.is_over(clock()):
                await asyncio.sleep(min(1.0, self._grace_s / 4))
            self._lose(node, f"connection lost for {self._grace_s:g} s")
        finally:
            alive.cancel()

    def _lose(self, node: NodeId, cause: str) -> None:
        guest = self._guests.pop(node)
        assert self._hub is not None
        self._hub.unreachable.discard(node)
        guest.stream.lose()
        self._hub.node_lost(node, cause)
        guest.watching.cancel()

    def _problem(self, hello: m.NodeHello) -> str:
        if hello.schema != SCHEMA or hello.code != __version__:
            return (
                f"node {hello.node} runs spotlight {hello.code} (messages {hello.schema}), but this run is on "
                f"{__version__} (messages {SCHEMA}), and mixed versions could disagree silently; install the same one."
            )
        if hello.token != self.token:
            return f"node {hello.node} sent a wrong token, so it is not of this run; start it with this run's token."
        is_known = hello.node in self._guests
        if hello.received is not None and not is_known:
            return f"node {hello.node} was away for longer than its grace, so its leases are given to others; it ends."
        if hello.received is None and is_known:
            return f"a node named {hello.node} is connected already; give each node a name of its own."
        return ""
