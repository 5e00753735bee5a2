"""The worker's own loop from an order to publish until it holds the weights, with a stand-in for its device."""

import queue
import threading
from pathlib import Path

from tiny_models import RUN_SEED, OnDevice, tiny_adapter

from spotlight.compute.models.config import ModelConfig
from spotlight.compute.parallel.crew_adapter import SharedAdapter
from spotlight.compute.rollout.engine import Engine
from spotlight.compute.train.config import LoraConfig, NftConfig, TrainConfig
from spotlight.compute.train.role import TrainingRole
from spotlight.compute.train.trainer import Trainer
from spotlight.core import messages as m
from spotlight.core.crew_messages import Adopt, AskNeighbour, Offered
from spotlight.core.types import NodeId, Version, WorkerId
from spotlight.core.work import RequestId, SlotClass, WeightsId
from spotlight.node.equipment import Equipment, Send
from spotlight.node.launch import WorkerLaunch
from spotlight.node.worker import Worker
from spotlight.node.worker_settings import WorkerSettings

ME, BASE = WorkerId("reserved-1.1/0.1"), "base"
BEHAVIOUR, UNKNOWN = WeightsId(Version(1)), WeightsId(Version(9))
FOR_EVER_S = 1e6


class ScenarioOver(BaseException):
    """Ends the worker's loop after the last order."""


class Agent:
    """The agent's end: orders to publish, announces what was published, and requests another set at the end."""

    def __init__(self, announced: list[type[m.AnyMessage]]) -> None:
        self._announced = announced
        self._orders: queue.SimpleQueue[m.AnyMessage] = queue.SimpleQueue()
        self._orders.put(m.Publish(weights=(BEHAVIOUR,)))
        self.received: list[m.AnyMessage] = []

    def recv(self) -> tuple[m.Envelope, bytes]:
        return m.Envelope(ME, self._orders.get()), b""

    def send(self, envelope: m.Envelope, blob: bytes = b"") -> None:
        message = envelope.message
        self.received.append(message)
        if isinstance(message, m.PublishedWeights):
            for kind in self._announced:
                where = {"path": "nowhere"} if kind is m.Load else {}
                self._orders.put(kind(weights=message.weights, digest=message.digest, keep=(message.weights,), **where))
            self._orders.put(AskNeighbour(weights=UNKNOWN, newcomer=ME))
        if isinstance(message, Offered):
            raise ScenarioOver


def equip(launch: WorkerLaunch, settings: WorkerSettings, send: Send) -> Equipment:
    adapter = tiny_adapter()
    trainer = Trainer(adapter, settings.train, settings.algorithm, settings.run_seed)
    role = TrainingRole(trainer, adapter, BASE, Path(settings.run_folder), send)
    resident = OnDevice(adapter.transformer, BASE, capacity=3)
    shared = SharedAdapter(adapter, send, resident)
    engine = Engine(shared, resident, settings.run_seed, launch.rows, padded=False)
    return Equipment(adapter, shared, resident, engine, role, "gpu")


def launched(folder: Path) -> tuple[WorkerLaunch, WorkerSettings]:
    settings = WorkerSettings(
        run_seed=RUN_SEED,
        run_folder=str(folder / "run"),
        deterministic=False,
        model=ModelConfig(),
        train=TrainConfig(lora=LoraConfig(rank=4, alpha=8.0)),
        algorithm=NftConfig(),
    )
    launch = WorkerLaunch(
        node=NodeId("reserved-1.1"),
        slot_class=SlotClass.RESERVED,
        rows=1,
        trains=True,
        threads=1,
        heartbeat_s=FOR_EVER_S,
        store=str(folder / "store"),
        settings=b"",
    )
    return launch, settings


def messages_of(folder: Path, *announced: type[m.AnyMessage]) -> list[m.AnyMessage]:
    """Messages about weights after the order to publish; the store of its node stays empty."""
    agent = Agent(list(announced))
    try:
        Worker(ME, agent, *launched(folder), equip).run()
    except ScenarioOver:
        return [message for message in agent.received if not isinstance(message, m.Hello | m.Pull | Offered)]
    raise AssertionError("the worker ended without an order to")


def test_worker_that_published_holds_what_it_wrote_without_asking_a_neighbour_or_the_store(tmp_path):
    for number, announced in enumerate(([m.Load], [Adopt], [Adopt, m.Load])):
        published, *held = messages_of(tmp_path / str(number), *announced)
        assert isinstance(published, m.PublishedWeights)
        assert held == [m.Held(weights=BEHAVIOUR, digest=published.digest)] * len(announced)


def test_commits_wait_for_no_picture(tmp_path, monkeypatch):
    """A worker that is killed while it decodes has lost no commit: its samples continue there."""
    decoding, sent = threading.Event(), queue.SimpleQueue[m.AnyMessage]()
    monkeypatch.setattr(Worker, "_decode", lambda self, finished: decoding.wait(FOR_EVER_S))
    agent = Agent([])
    monkeypatch.setattr(agent, "send", lambda envelope, blob=b"": sent.put(envelope.message))
    worker = Worker(ME, agent, *launched(tmp_path), equip)
    commit = m.Commit(request=RequestId("rollout/0/0/1"), attempt=1, step=2)
    try:
        worker.deliver([])
        worker.commit([(commit, b"flight")])
        assert sent.get(timeout=60.0) == commit
    finally:
        decoding.set()
