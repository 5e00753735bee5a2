"""A run that listens over TLS, without its own nodes: a door, a hub with samples, a join pool, and clients of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from dispatch_stories import NoPayloads

from spotlight import __version__
from spotlight.control.directory import PublishedSet
from spotlight.control.dispatch import Dispatcher
from spotlight.control.ledger import Ledger
from spotlight.control.scheduler import Scheduler
from spotlight.controller.door import Door
from spotlight.controller.gate import Gate, GateLimits
from spotlight.controller.hub import Hub
from spotlight.core import join_messages as joins
from spotlight.core import messages as m
from spotlight.core import wire
from spotlight.core.blobs import BlobKind, BlobRef
from spotlight.core.clock import RealClock
from spotlight.core.events import SCHEMA, AnyEvent, ProblemNoted
from spotlight.core.source_digest import source_digest
from spotlight.core.tls import open_pinned
from spotlight.core.types import NodeId, Prompt, Sample, Sampling, Size, Version, WorkerId
from spotlight.core.work import Request, SlotClass, Work
from spotlight.node.controller_link import ControllerLink
from spotlight.node.launch import MachineLaunch
from spotlight.pools.blob_home import BlobHomeSettings
from spotlight.pools.config import ClusterConfig, MarketConfig
from spotlight.pools.join_pool import JoinPool, JoinSettings
from spotlight.pools.local import LocalPool, LocalPoolSettings
from spotlight.pools.tokens import RunSecrets, token_file_of

HOST = "127.0.0.1"
PATIENCE_S = 20.0
SETTINGS = msgspec.json.encode({"run_folder": "", "model": {"name": "words"}})
MODEL = "a model in no folder"
PROMPT = Prompt(text="a word")
LENIENT = GateLimits(strangers=1 << 20, strangers_per_address=1 << 20, window_s=0.0)


class ListeningRun:
    """The controller's side of a run that listens."""

    def __init__(self, folder: Path, limits: GateLimits | None = None, grace_s: float = PATIENCE_S) -> None:
        self.folder = folder
        self.events: list[AnyEvent] = []
        ledger = Ledger(self.events.append)
        scheduler = Scheduler(ledger)
        dispatcher = Dispatcher(ledger, scheduler, NoPayloads(), self.events.append, lambda at: at, commit_every=1)
        # As the run's own workers report them.
        dispatcher.directory.kernels = ""
        self.gate = Gate(limits)
        self.door = Door("local secret", grace_s, self.gate)
        self.hub = Hub(dispatcher, RealClock(), self.door.send)
        self.secrets = RunSecrets(folder)
        port = self.door.listen_tls(HOST, 0, self.hub, self.secrets.identity)
        self.address = f"{HOST}:{port}"
        self.secrets.listens_at(self.address)
        cluster = ClusterConfig(pool="join", listen=self.address, rows=4, spot=1, grace_s=grace_s, drain_s=0.1)
        settings = LocalPoolSettings(
            run=folder, controller=folder / "hub.sock", token="local secret", entry="echo:entry", preload=(),
            worker_settings=SETTINGS, model=MODEL, rewards=(), cluster=cluster,
        )  # fmt: skip
        self.pool = JoinPool(
            LocalPool(settings),
            self.door,
            JoinSettings(
                pool=settings,
                market=MarketConfig(),
                device="cpu",
                address=self.address,
                blobs=BlobHomeSettings(folder=folder, host=HOST, port=0, identity=self.secrets.folder, secret="s"),
            ),
            self.secrets,
        )

    @property
    def token(self) -> str:
        return token_file_of(self.folder).token

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def issue(self, count: int) -> list[Request]:
        """Publish weights, and issue requests of one group."""
        sampling = Sampling(steps=6, size=Size(8, 8))
        samples = [Sample(prompt=PROMPT.id, seed=seed, sampling=sampling, version=Version(0)) for seed in range(count)]
        requests = [Request(work=Work.ROLLOUT, iteration=0, group=0, sample=sample) for sample in samples]
        self.hub.dispatcher.publish(requests[0].weights, PublishedSet(digest="weights", path=""), keep=())
        self.hub.dispatcher.issue(requests, [PROMPT], [0])
        return requests

    def problems(self) -> list[str]:
        return [event.problem for event in self.events if isinstance(event, ProblemNoted)]

    def join(self, **changes: object) -> joins.Join:
        """The message of a machine that belongs here."""
        plain = joins.Join(
            schema=SCHEMA, code=__version__, source=source_digest(), token=self.token, name="box",
            slot_class=SlotClass.SPOT,
        )  # fmt: skip
        return msgspec.structs.replace(plain, **changes)

    async def dialled(self, join: joins.Join, fingerprint: str | None = None) -> m.AnyMessage | None:
        """What a machine receives that joins so."""
        reader, writer = await open_pinned(HOST, self.port, fingerprint or self.secrets.identity.fingerprint)
        try:
            wire.write(writer, m.Envelope(None, join))
            reply = await asyncio.wait_for(wire.read(reader), PATIENCE_S)
            return None if reply is None else reply[0].message
        finally:
            writer.close()

    async def joined(self, name: str = "box", **changes: object) -> MachineLaunch:
        reply = await self.dialled(self.join(name=name, **changes))
        assert isinstance(reply, joins.Joined), reply
        return MachineLaunch.from_bytes(reply.launch)

    def link(self, launch: MachineLaunch, **changes: object) -> ControllerLink:
        """The agent's end of the link of a node that has joined."""
        agent = launch.agent
        hello = msgspec.structs.replace(agent.node_settings("").hello(), **changes)
        return ControllerLink(agent.controller, hello, PATIENCE_S, agent.fingerprint)

    async def eventually(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(folder: Path, limits: GateLimits | None = None, **settings: float) -> AsyncIterator[ListeningRun]:
    run = ListeningRun(folder, limits, **settings)
    try:
        yield run
    finally:
        await run.door.close()


def hello_of(node: NodeId, slot: int = 0) -> tuple[WorkerId, m.Hello]:
    """The first message of a spot worker."""
    worker = WorkerId(f"{node}/{slot}.1")
    return worker, m.Hello(schema=SCHEMA, code=__version__, node=node, slot_class=SlotClass.SPOT, rows=4, pid=1)


class Party:
    """An honest node with leases, and a node on another machine that is not honest."""

    def __init__(self, run: ListeningRun) -> None:
        self.run = run
        self.requests = run.issue(4)
        self.honest, hello = hello_of(NodeId("honest.1"))
        node = m.NodeHello(schema=SCHEMA, code=__version__, node=hello.node, slot_class=SlotClass.SPOT, slots=1)
        run.hub.node_joined(node)
        for message in (hello, m.Held(weights=self.requests[0].weights, digest="weights"), m.Pull(free_rows=4)):
            run.hub.receive(hello.node, m.Envelope(self.honest, message))
        assert {self.holder(request.id) for request in self.requests} == {self.honest}

    def holder(self, request):
        return self.run.hub.dispatcher.ledger._entries[request].holder

    async def connect(self) -> NodeId:
        launch = await self.run.joined("evil")
        self.link = self.run.link(launch)
        await self.link.connect()
        self.node = launch.agent.node
        self.own, hello = hello_of(self.node)
        self.link.send(hello, self.own)
        await self.run.eventually(lambda: self.own in self.run.hub.dispatcher.directory.workers)
        return self.node

    async def sent(self, message: m.AnyMessage, worker: WorkerId | None) -> None:
        """Send a message and wait until it has been handled."""
        before = self.run.door._guests[self.node].stream.link.received
        self.link.send(message, worker)
        await self.run.eventually(
            lambda: (
                self.node not in self.run.door._guests or self.run.door._guests[self.node].stream.link.received > before
            )
        )

    def state(self) -> object:
        """What the node must not change."""
        dispatcher = self.run.hub.dispatcher
        entries = [dispatcher.ledger._entries[request.id] for request in self.requests]
        return (
            [(entry.state, entry.attempt, entry.holder, entry.step) for entry in entries],
            {worker: known for worker, known in dispatcher.directory.workers.items() if worker != self.own},
            dict(dispatcher.directory.weights),
            len(dispatcher.flights),
            list(dispatcher.to_gang),
            dispatcher.failure,
            self.run.hub._failure,
        )


FLIGHT = BlobRef(kind=BlobKind.FLIGHT, path="flights/evil.1-0", digest="d", size=1)


PAYLOAD = BlobRef(kind=BlobKind.PAYLOAD, path="payloads/000000/0000-0-1.safetensors", digest="d", size=1)
"""Tensors of the honest worker's first sample."""


def forged(request) -> list[m.AnyMessage]:
    """Messages about the lease of another worker."""
    return [
        m.Result(request=request.id, attempt=1, digest="weights", steps=6, score=m.Score(reward=1.0)),
        m.Result(request=request.id, attempt=1, digest="other", steps=6, payload=PAYLOAD),
        m.Commit(request=request.id, attempt=1, step=2, flight=FLIGHT),
        m.HandBack(request=request.id, attempt=1, step=2, flight=FLIGHT),
        m.HandBack(request=request.id, attempt=1, step=0),
        m.Failed(request=request.id, attempt=1, problem="forged"),
        m.Alive(progress=(m.Progress(request.id, 1, 5),)),
    ]
