"""Server that agents connect to: one link per node, which outlives its connections (`core/link.py`).

A node is lost when its link is: when the pool reports that its processes have ended, or after the grace. Until then
its workers keep their leases, and what is sent to them waits.

Agents on this machine connect to a unix socket with the run's own token. Agents on other machines connect over TLS,
each with a token that `expect` names for its node; machines join over the same port (`pools/join_pool.py`).

Invariants: a connection that breaks for less than the grace costs no worker, no message and no step; a node that
returns after the grace is refused, and ends itself (tests/processes/test_run.py). What comes from another
machine without the right token, or outside of its node's scope, changes nothing (tests/unit/test_join_security.py).
"""

import asyncio
import contextlib
import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from spotlight import __version__
from spotlight.control.outside import Outgoing
from spotlight.controller.gate import Gate
from spotlight.controller.hub import Hub
from spotlight.controller.remote_node import Fate, RemoteNode
from spotlight.controller.scope import belongs
from spotlight.controller.tls_listener import TlsListener, Visitor
from spotlight.core import join_messages as joins
from spotlight.core import messages as m
from spotlight.core import wire
from spotlight.core.errors import EnvironmentProblem
from spotlight.core.events import SCHEMA
from spotlight.core.link import GRACE_S, Link, LinkError
from spotlight.core.link_stream import LinkStream
from spotlight.core.node_spec import NodeSpec, NodeStanding, NodeState
from spotlight.core.tls import Identity
from spotlight.core.types import NodeId

HANDSHAKE_S = 10.0
"""A client that has not introduced itself by then is dropped."""
HANDSHAKE_LIMITS = wire.FrameLimits(message=64 << 10, blob=0)
"""Largest first frame of a client."""
REMOTE_LIMITS = wire.FrameLimits(message=4 << 20, blob=0)
"""Largest frame of a node on another machine: its bytes travel by reference."""
OLDEST_S = 1e9
"""Highest age of a machine that is believed."""
NOTE_LIMIT = 400
"""Characters of a stranger's problem that are recorded."""


@dataclass(eq=False)
class _Guest:
    """A node with its link."""

    stream: LinkStream
    watching: asyncio.Task[None]
    remote: RemoteNode | None = None
    """None: its agent is a process of this machine."""
    has_ended: bool = False
    """The pool has seen the end of its processes: nothing comes after what is on the way."""


class Expected(msgspec.Struct, frozen=True):
    """A node on another machine, whose agent may connect with this token."""

    token: str
    spec: NodeSpec


class _Serve(Protocol):
    def __call__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, visitor: Visitor | None = None, /
    ) -> Awaitable[None]: ...


class Door:
    """Accepts agents, delivers their frames to the hub, and sends the controller's."""

    def __init__(self, token: str, grace_s: float = GRACE_S, gate: Gate | None = None) -> None:
        self.token = token
        self._grace_s = grace_s
        self._gate = gate or Gate()
        self._expected: dict[NodeId, Expected] = {}
        self.joins: Callable[[joins.Join], joins.Joined | joins.JoinRefused | None] = _no_joins
        """Decides about a machine that wants to join; set by the pool of such machines."""
        self.lost: Callable[[NodeId], None] = _ignore
        """A node is lost; set by the same pool."""
        self._guests: dict[NodeId, _Guest] = {}
        self._places: dict[NodeId, str] = {}
        """Addresses of nodes on other machines."""
        self._servers: list[asyncio.AbstractServer | TlsListener] = []
        self._hub: Hub | None = None

    async def open(self, path: Path, hub: Hub) -> None:
        """Listen at a unix socket that only this user can open."""
        self._serve_for(hub)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        self._servers.append(await asyncio.start_unix_server(self._guarded(hub), str(path), limit=wire.STREAM_LIMIT))
        path.chmod(0o600)

    async def listen(self, host: str, port: int, hub: Hub) -> int:
        """Listen at a TCP port of the loopback device, without TLS; returns the port, which is free to choose for 0."""
        if not ipaddress.ip_address(host).is_loopback:
            raise ValueError(f"{host} is not a loopback address: other machines connect over TLS alone")
        self._serve_for(hub)
        server = await asyncio.start_server(self._guarded(hub), host, port, limit=wire.STREAM_LIMIT)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def listen_tls(self, host: str, port: int, hub: Hub, identity: Identity) -> int:
        """Listen for other machines; returns the port, which is free to choose for 0."""
        self._serve_for(hub)
        listener = TlsListener(identity, self._gate, self._guarded(hub), self._stranger_failed)
        self._servers.append(listener)
        return listener.start(host, port)

    def expect(self, node: NodeId, expected: Expected) -> None:
        """The agent of this node may connect from another machine."""
        self._expected[node] = expected

    def forget(self, node: NodeId) -> None:
        """The node is gone: its token is no longer valid."""
        self._expected.pop(node, None)
        self._places.pop(node, None)

    def standings(self) -> tuple[NodeStanding, ...]:
        """Nodes that are connected, or whose machines have joined, in the order of their names."""
        hellos = self._hub.dispatcher.directory.nodes if self._hub is not None else {}
        known: dict[NodeId, NodeSpec | m.NodeHello] = {node: each.spec for node, each in self._expected.items()}
        known |= {node: hellos[node] for node in self._guests if node in hellos}
        return tuple(
            NodeStanding(
                node=node,
                place=self._places.get(node, ""),
                slot_class=known[node].slot_class,
                slots=known[node].slots,
                zone=known[node].zone,
                state=self._state(node),
            )
            for node in sorted(known)
        )

    def _state(self, node: NodeId) -> NodeState:
        if node not in self._guests:
            return NodeState.JOINING
        is_away = self._hub is not None and node in self._hub.unreachable
        return NodeState.AWAY if is_away else NodeState.CONNECTED

    def has(self, node: NodeId) -> bool:
        """Whether the node has a link."""
        return node in self._guests

    def drop(self, node: NodeId, cause: str) -> None:
        """Lose a node at once, if it is connected."""
        if node in self._guests:
            self._lose(node, cause)

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
        guest.stream.send(m.Envelope(outgoing.worker, outgoing.message))
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

    def _guarded(self, hub: Hub) -> _Serve:
        async def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, visitor: Visitor | None = None
        ) -> None:
            try:
                await self._serve(hub, reader, writer, visitor)
            except (ConnectionError, asyncio.CancelledError):
                pass
            except (wire.WireError, LinkError, TimeoutError) as error:
                # An unknown client or a damaged agent: the connection is closed, the run continues.
                problem = str(error) or "a client did not introduce itself"
                if visitor is None:
                    hub.dispatcher.setbacks.note("controller", problem)
                elif not visitor.is_proved:
                    self._stranger_failed(visitor, problem)
            except Exception as error:
                hub.fail(error)
            finally:
                writer.close()

        return serve

    def _stranger_failed(self, visitor: Visitor, problem: str) -> None:
        """Count it, and record the first failure of an address."""
        if visitor.failed() and self._hub is not None:
            shown = "".join(character if character.isprintable() else "?" for character in problem[:NOTE_LIMIT])
            self._hub.dispatcher.setbacks.note(
                "controller", f"a machine at {visitor.source} was refused; later refusals of it are not noted: {shown}"
            )

    async def _serve(
        self, hub: Hub, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, visitor: Visitor | None
    ) -> None:
        first = await asyncio.wait_for(wire.read(reader, HANDSHAKE_LIMITS), HANDSHAKE_S)
        message = first[0].message if first is not None else None
        if isinstance(message, joins.Join) and visitor is not None:
            await self._answer(message, writer, visitor)
            return
        if not isinstance(message, m.NodeHello):
            if visitor is not None:
                self._stranger_failed(visitor, "it did not introduce itself")
            return
        problem = self._problem(message, visitor is not None)
        if problem:
            if visitor is not None:
                self._stranger_failed(visitor, problem)
            await _reply(writer, m.Rejected(reason=problem))
            return
        if visitor is not None:
            visitor.proved()
            self._places[message.node] = visitor.host
        await self._relay(hub, self._welcomed(hub, message, reader, writer), message.node, reader)

    async def _answer(self, join: joins.Join, writer: asyncio.StreamWriter, visitor: Visitor) -> None:
        """Reply to a machine that wants to join; its connection has no other purpose."""
        reply = self.joins(join)
        if isinstance(reply, joins.JoinRefused) and not reply.wait_s:
            self._stranger_failed(visitor, reply.reason)
        elif isinstance(reply, joins.Joined):
            self._places[reply.node] = visitor.host
        if reply is not None:
            await _reply(writer, reply)

    async def _relay(self, hub: Hub, guest: _Guest, node: NodeId, reader: asyncio.StreamReader) -> None:
        """Deliver what the node sends on this connection, except what it may not send."""
        try:
            while (received := await guest.stream.read(reader)) is not None:
                if guest.remote is not None:
                    self._receive_remote(hub, guest.remote, received[0])
                elif belongs(node, received[0].worker):
                    hub.receive(node, received[0])
        finally:
            if guest.stream.broke(reader) and self._guests.get(node) is guest:
                hub.node_away(node)
                if guest.has_ended:
                    with contextlib.suppress(RuntimeError):
                        self._lose(node, "connection lost")

    def _receive_remote(self, hub: Hub, remote: RemoteNode, envelope: m.Envelope) -> None:
        for each, (fate, problem) in remote.receive(envelope, hub.dispatcher.directory):
            if problem:
                hub.dispatcher.setbacks.note_once(remote.node, problem)
            if fate is Fate.DELIVERED:
                hub.receive(remote.node, each)
            elif fate is Fate.EXPELS:
                self._expel(remote.node, problem)
                return

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
            hub.node_back(hello.node)
            return known
        clock = asyncio.get_running_loop().time
        expected = self._expected.get(hello.node)
        spec = expected.spec if expected is not None else None
        stream = LinkStream(Link(clock(), self._grace_s), clock, wire.LIMITS if spec is None else REMOTE_LIMITS)
        stream.attach(reader, writer, 0)
        remote = RemoteNode(hello.node, spec) if spec is not None else None
        guest = self._guests[hello.node] = _Guest(stream, asyncio.create_task(self._watch(hello.node, stream)), remote)
        if spec is not None:
            # What the pool has granted, not what the agent claims: the bill depends on it.
            hello = msgspec.structs.replace(
                hello,
                slot_class=spec.slot_class,
                slots=spec.slots,
                zone=spec.zone,
                price=spec.price,
                age_s=min(hello.age_s, OLDEST_S) if hello.age_s >= 0 else 0.0,
            )
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

    def _expel(self, node: NodeId, problem: str) -> None:
        """Send a machine away for good, with the reason."""
        leave = joins.Leave(reason=problem, exit_code=EnvironmentProblem.exit_code)
        self.send(Outgoing(node, None, leave))
        self.forget(node)
        self.drop(node, problem)

    def _lose(self, node: NodeId, cause: str) -> None:
        guest = self._guests.pop(node)
        assert self._hub is not None
        self._hub.unreachable.pop(node, None)
        guest.stream.lose()
        self._hub.node_lost(node, cause)
        guest.watching.cancel()
        self.lost(node)

    def _problem(self, hello: m.NodeHello, is_remote: bool) -> str:
        """Reason to refuse a node; a stranger learns nothing before its token is right."""
        expected = self._expected.get(hello.node)
        token = (expected.token if expected is not None else "") if is_remote else self.token
        if not token or not hmac.compare_digest(hello.token.encode(), token.encode()):
            return f"node {hello.node[:64]} sent a wrong token, so it is not of this run; join it again."
        if hello.schema != SCHEMA or hello.code != __version__:
            return (
                f"node {hello.node} runs spotlight {hello.code} (messages {hello.schema}), but this run is on "
                f"{__version__} (messages {SCHEMA}), and mixed versions could disagree silently; install the same one."
            )
        is_known = hello.node in self._guests
        if hello.received is not None and not is_known:
            return f"node {hello.node} was away for longer than its grace, so its leases are given to others; it ends."
        if hello.received is None and is_known:
            return f"a node named {hello.node} is connected already; give each node a name of its own."
        return ""


async def _reply(writer: asyncio.StreamWriter, message: m.AnyMessage) -> None:
    """Write the last frame of a connection; its peer may be gone, which TLS does not always report in order."""
    wire.write(writer, m.Envelope(None, message))
    with contextlib.suppress(OSError):
        await writer.drain()


def _no_joins(join: joins.Join) -> joins.JoinRefused:
    return joins.JoinRefused(reason="this run takes no machines; start it with cluster.listen.")


def _ignore(node: NodeId) -> None:
    """Default: no pool has nodes on other machines."""
