"""Machines that bring themselves: each dials the controller, is made a node, and leaves when it likes.

    ABSENT --Join--> GRANTED --its agent connects--> NODE --left, lost, killed--> ABSENT --Join--> the next incarnation
                        `--does not connect--> ABSENT

`JoinPool` wraps the local pool, which has the reserved nodes on the controller's machine. It starts no machines: orders
go over the link of a node's agent, and the machine reports the end of its processes with its next `Join`, or the link
is lost after its grace.

Invariants (tests/unit/test_join_pool.py): a name belongs to one machine at a time, and a node id is used once; only the
machine that was a node can report its end.
"""

import asyncio
import hmac
import re
import secrets
import shlex
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from spotlight import __version__
from spotlight.compute.models.config import CPU, CUDA, device_of
from spotlight.control.outside import Outgoing
from spotlight.controller.door import Door, Expected
from spotlight.core import join_messages as joins
from spotlight.core import messages as m
from spotlight.core.events import SCHEMA
from spotlight.core.node_spec import NodeSpec
from spotlight.core.source_digest import source_digest
from spotlight.core.tls import split_address
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind, SlotClass
from spotlight.node.blob_server import token_of
from spotlight.node.launch import AgentLaunch, MachineLaunch
from spotlight.pools.blob_home import BlobHome, BlobHomeSettings
from spotlight.pools.config import ClusterConfig, MarketConfig
from spotlight.pools.local import COUNTS, LocalPool, LocalPoolSettings
from spotlight.pools.machine import PRELOAD_S
from spotlight.pools.pool import Departure, NodeDown, NodeUp, PoolEvent
from spotlight.pools.processes import REAP_S, Incarnations
from spotlight.pools.tokens import RunSecrets

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
MACHINES_LIMIT = 1024
SLOTS_LIMIT = 64
WORD_LIMIT = 64
"""Characters of a zone, and of the model of a GPU."""
CONNECT_S = 600.0
"""A machine whose agent has not connected by then has lost its name."""
FAREWELL_S = 5.0
"""Time for machines to end when the run does."""
TOKEN_BYTES = 32
PEERS = NodeId("peers")
"""In whose name nodes prove themselves to one another."""


@dataclass(frozen=True, kw_only=True)
class JoinSettings:
    """What joined nodes are made of."""

    pool: LocalPoolSettings
    market: MarketConfig
    device: str
    """Device of the workers: cpu, cuda, or one GPU."""
    deterministic: bool = False
    address: str
    """host:port at which other machines reach the controller."""
    blobs: BlobHomeSettings
    """The server of the run's folder, which the pool starts and ends."""

    @property
    def cluster(self) -> ClusterConfig:
        return self.pool.cluster

    @property
    def gpus(self) -> tuple[str, ...]:
        """Models of the GPUs of the run's own nodes."""
        return tuple(sorted({each.model for each in self.pool.devices.devices.values()}))

    def taken(self) -> set[str]:
        """Names of the run's own nodes."""
        cluster = self.cluster
        return {spec.name for spec in (*cluster.reserved_nodes(), *cluster.spot_nodes(), *cluster.stand_ins())}

    def spec_of(self, join: joins.Join) -> NodeSpec:
        market, cluster = self.market, self.cluster
        price = market.spot_price if join.slot_class is SlotClass.SPOT else market.reserved_price
        slots = join.slots or (len(join.gpus) if self.launched_on == CUDA else 0) or cluster.slots
        return cluster.joined_node(join.name, join.slot_class, slots, price, join.zone)

    @property
    def launched_on(self) -> str:
        """Device of a machine's workers; a paced run computes nothing."""
        return self.device if self.cluster.pace is None else CPU

    def other_gpus(self, join: joins.Join) -> str:
        """Models of the machine's GPUs that the run's own nodes do not have; empty if there is none."""
        needed = device_of(self.launched_on)[0] != CPU and bool(self.gpus)
        return ", ".join(sorted(set(join.gpus) - set(self.gpus))) if needed else ""

    def gpu_problem(self, join: joins.Join) -> str:
        """Reason why the machine's GPUs cannot be used; empty if they can, or none is needed."""
        if device_of(self.launched_on)[0] != CPU and not join.gpus:
            return (
                f"the run computes on GPUs (model.device is {self.device}), but torch finds none on this machine; see "
                "`spotlight doctor` there."
            )
        if self.deterministic and (others := self.other_gpus(join)):
            return (
                f"the machine has {others}, but the run's GPUs are {', '.join(self.gpus)} and deterministic is on, and "
                "another GPU computes other bits; join with the same GPUs, or start a run without deterministic."
            )
        return ""


@dataclass(eq=False)
class _Member:
    spec: NodeSpec
    node: NodeId
    token: str
    granted_at: float
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class JoinPool:
    """Implements `Pool` for nodes that bring themselves; all others are the local pool's."""

    FINISHED = joins.Leave(reason="the run is done.")
    STOPPED = joins.Leave(reason="the run has stopped; join again when it is resumed.", exit_code=4)

    def __init__(self, local: LocalPool, door: Door, settings: JoinSettings, secrets_: RunSecrets) -> None:
        self._local = local
        self._door = door
        self._settings = settings
        self._secrets = secrets_
        self._members: dict[str, _Member] = {}
        self._dismissed: set[str] = set()
        """Tokens of nodes whose machines were reported gone, and may not return as they were."""
        self._home = BlobHome(settings.blobs)
        self._counts = Incarnations(settings.pool.run / COUNTS)
        self._events: asyncio.Queue[PoolEvent | None] = asyncio.Queue()
        self._forwarding: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.farewell: Callable[[], joins.Leave] = lambda: self.STOPPED
        """The order with which machines leave when the run ends."""
        self.announce: Callable[[str], None] = lambda line: None
        """Shows a line to the user."""
        door.joins, door.lost = self.answer, self._lost

    async def start(self) -> None:
        await self._home.start()
        self._forwarding = asyncio.create_task(self._forward())
        await self._local.start()

    async def events(self) -> AsyncIterator[PoolEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(sorted((*self._local.nodes(), *(member.node for member in self._members.values()))))

    def current(self, name: str) -> NodeId | None:
        return self._members[name].node if name in self._members else self._local.current(name)

    async def add_node(self, spec: NodeSpec) -> NodeId:
        """Start one of the run's own nodes: machines that join cannot be started from here."""
        return await self._local.add_node(spec)

    async def warn(self, node: NodeId, kind: NoticeKind, seconds: float) -> None:
        if self._find(node) is None:
            await self._local.warn(node, kind, seconds)
        else:
            self._order(node, joins.NoticeOrder(kind=kind, seconds=seconds))

    async def kill_worker(self, worker: WorkerId) -> None:
        node = NodeId(worker.partition("/")[0])
        if self._find(node) is None:
            await self._local.kill_worker(worker)
        else:
            self._order(node, joins.KillOrder(worker=worker))

    async def kill_node(self, node: NodeId) -> None:
        if (member := self._find(node)) is None:
            await self._local.kill_node(node)
            return
        self._order(node, joins.Leave(reason="the run has ended this node."))
        await self._gone(member, REAP_S)

    async def drain_node(self, node: NodeId) -> None:
        if (member := self._find(node)) is None:
            await self._local.drain_node(node)
            return
        self._order(node, m.Drain())
        with suppress(TimeoutError):
            await asyncio.wait_for(member.gone.wait(), self._settings.cluster.drain_s + REAP_S)
        await self.kill_node(node)

    async def stop(self) -> None:
        self._is_stopping = True
        members = list(self._members.values())
        for member in members:
            self._order(member.node, self.farewell())
        await asyncio.gather(*(self._gone(member, FAREWELL_S) for member in members))
        await self._local.stop()
        await self._home.stop()
        if self._forwarding is not None:
            await self._forwarding
            self._forwarding = None

    def connected(self, name: str) -> NodeId | None:
        """The incarnation of the machine of this name whose agent is connected."""
        member = self._members.get(name)
        return member.node if member is not None and self._door.has(member.node) else None

    def ended(self, name: str, cause: str) -> None:
        """The processes of the machine of this name are gone, as something other than the machine reports; if they live
        on for a while, they do not join again."""
        if (member := self._members.get(name)) is not None:
            self._dismissed.add(member.token)
            self._down(member, Departure.KILLED, cause)
            self._door.drop(member.node, cause)

    # -- machines that join --------------------------------------------------------------------------------------------

    def answer(self, join: joins.Join) -> joins.Joined | joins.JoinRefused | None:
        """Make the machine a node, or refuse it; None if it only reports that it has left."""
        # Before the run's token, which may have been revoked: the machine was a node, and proves it.
        if join.previous and self._ended(join.previous, join.leaves) and join.leaves:
            return None
        if not self._secrets.matches(join.token):
            return joins.JoinRefused(
                reason="the token is not this run's, or was revoked; fetch the run's present token file."
            )
        if join.leaves:
            return None
        if join.previous in self._dismissed:
            return joins.JoinRefused(reason="this machine was reported gone, and another takes its place.", exit_code=4)
        problem = self._problem(join)
        if problem is not None:
            return problem
        spec = self._settings.spec_of(join)
        node = spec.incarnation(self._counts.next(spec.name))
        member = _Member(spec, node, secrets.token_urlsafe(TOKEN_BYTES), asyncio.get_running_loop().time())
        self._members[spec.name] = member
        self._door.expect(node, Expected(member.token, spec))
        self._events.put_nowait(NodeUp(node=node, spec=spec))
        self.announce(f"{node} joins: {spec.slots} {spec.slot_class} slot{'s' if spec.slots > 1 else ''}")
        if others := self._settings.other_gpus(join):
            ours = ", ".join(self._settings.gpus)
            self.announce(f"{node} has {others}, where the run has {ours}: work is shared by measured speed")
        return joins.Joined(node=node, launch=self._launch(member).to_bytes())

    def _problem(self, join: joins.Join) -> joins.JoinRefused | None:
        ours, theirs = (SCHEMA, __version__, source_digest()), (join.schema, join.code, join.source)
        if ours != theirs:
            return joins.JoinRefused(
                reason=f"the machine has spotlight {join.code[:32]} with the source files {join.source[:32]}, but the "
                f"run has {__version__} with {source_digest()}, and mixed versions could disagree silently; install "
                "the run's version.",
                exit_code=3,
            )
        if self._is_stopping:
            return joins.JoinRefused(reason="the run is ending; join again when it is resumed.", exit_code=4)
        is_small = 0 <= join.slots <= SLOTS_LIMIT and len(join.gpus) <= SLOTS_LIMIT
        # Both are printed where the run lives.
        is_named = all(len(each) <= WORD_LIMIT and each.isprintable() for each in (join.zone, *join.gpus))
        if not NAME.fullmatch(join.name) or not is_small or not is_named:
            return joins.JoinRefused(
                reason="the machine has an impossible name, number of slots, zone or model of a GPU: a name has up to "
                f"40 lower-case letters, digits and hyphens, a machine 1 to {SLOTS_LIMIT} slots, a zone or a model "
                f"{WORD_LIMIT} printable characters; choose others."
            )
        if problem := self._settings.gpu_problem(join):
            return joins.JoinRefused(reason=problem, exit_code=3)
        if problem := self.name_problem(join):
            return joins.JoinRefused(reason=problem)
        self._forget_unconnected()
        if join.name in self._members or join.name in self._settings.taken():
            return joins.JoinRefused(
                reason=f"the run has a node named {join.name} already; choose another with --name.",
                wait_s=1.5 * self._settings.cluster.grace_s,
            )
        if len(self._members) >= MACHINES_LIMIT:
            return joins.JoinRefused(reason=f"the run has {MACHINES_LIMIT} machines, its most.", wait_s=PRELOAD_S)
        return None

    def name_problem(self, join: joins.Join) -> str:
        """Reason why no machine of this kind can have the name; empty if one can."""
        return ""

    def _launch(self, member: _Member) -> MachineLaunch:
        settings, pool = self._settings, self._settings.pool
        template: AgentLaunch = msgspec.structs.replace(
            pool.template(member.spec, member.node),
            controller=settings.address,
            fingerprint=self._secrets.identity.fingerprint,
            token=member.token,
            blobs=reachable(settings.blobs.host, self._home.port),
            blob_token=token_of(settings.blobs.secret, member.node),
            peer_token=token_of(settings.blobs.secret, PEERS),
            gang_port=0,
            notices=settings.cluster.notices.model_dump_json(),
        )
        return MachineLaunch(
            agent=template,
            entry=pool.entry,
            preload=pool.preload,
            warm=pool.warm,
            model=pool.model,
            device=settings.launched_on,
            shares_devices=settings.cluster.share_devices,
        )

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _ended(self, token: str, left: bool) -> bool:
        """The machine that was the node of this token reports that its processes are gone; False: there is none."""
        found = [each for each in self._members.values() if hmac.compare_digest(each.token.encode(), token.encode())]
        for member in found:
            self._down(member, Departure.LEFT if left else Departure.KILLED, "its machine reports its end")
        return bool(found)

    def _lost(self, node: NodeId) -> None:
        """The door has lost the node's link."""
        if (member := self._find(node)) is not None:
            self._down(member, Departure.KILLED, "its link is lost")

    def _forget_unconnected(self) -> None:
        now = asyncio.get_running_loop().time()
        for member in list(self._members.values()):
            if now - member.granted_at > CONNECT_S and not self._door.has(member.node):
                self._down(member, Departure.KILLED, f"its agent did not connect within {CONNECT_S:g} s")

    def _down(self, member: _Member, departure: Departure, cause: str) -> None:
        del self._members[member.spec.name]
        self._door.forget(member.node)
        self._events.put_nowait(NodeDown(node=member.node, spec=member.spec, departure=departure, cause=cause))
        self.announce(f"{member.node} is gone: {cause}")
        member.gone.set()

    async def _gone(self, member: _Member, patience_s: float) -> None:
        """Wait until a connected node has ended that was ordered to; then it counts as gone."""
        if self._door.has(member.node):
            with suppress(TimeoutError):
                await asyncio.wait_for(member.gone.wait(), patience_s)
        self._door.drop(member.node, "ended by the run")
        if self._members.get(member.spec.name) is member:
            self._down(member, Departure.KILLED, "ended by the run")

    # -- look-up and orders --------------------------------------------------------------------------------------------

    def _find(self, node: NodeId) -> _Member | None:
        member = self._members.get(node.rpartition(".")[0])
        return member if member is not None and member.node == node else None

    def _order(self, node: NodeId, message: m.AnyMessage) -> None:
        self._door.send(Outgoing(node, None, message))

    async def _forward(self) -> None:
        """Pass the local pool's events on; they end with it."""
        async for event in self._local.events():
            self._events.put_nowait(event)
        self._events.put_nowait(None)


def reachable(host: str, port: int) -> str:
    """host:port at which other machines reach a socket bound to `host`."""
    if host in ("0.0.0.0", "::"):
        host = _own_address(socket.AF_INET6 if host == "::" else socket.AF_INET)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _own_address(family: socket.AddressFamily) -> str:
    """The address of this machine's route to others; no packet is sent."""
    outside = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((outside, 9))
            return str(sock.getsockname()[0])
    except OSError:
        return socket.gethostname()


def joining_lines(address: str, run: str) -> tuple[str, ...]:
    """How another machine joins, for the user."""
    is_local = split_address(address)[0] in ("localhost", "::1") or address.startswith("127.")
    scope = ", an address that other machines cannot reach" if is_local else ""
    word, file = shlex.quote(run), shlex.quote(f"{run}.token.json")
    return (
        f"listening at {address}{scope}; `spotlight token {word}` writes a token file, by which other machines join:",
        f"  spotlight join {address} --token-file {file}",
    )
