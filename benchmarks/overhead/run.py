"""One worker and the real controller's code in one process, timed separately."""

import os
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import msgspec
import torch

from benchmarks.lib.figures import Figure
from spotlight.compute.data.worlds import world
from spotlight.compute.models import families
from spotlight.compute.rollout.engine import Engine
from spotlight.compute.weights.resident import Resident
from spotlight.control.directory import PublishedSet
from spotlight.control.dispatch import Dispatcher
from spotlight.control.ledger import Ledger
from spotlight.control.scheduler import Scheduler
from spotlight.controller.payloads import PayloadFolder
from spotlight.core import messages as m
from spotlight.core.clock import RealClock
from spotlight.core.events import SCHEMA, AnyEvent
from spotlight.core.journal import Journal
from spotlight.core.types import NodeId, Sample, SamplerKind, Sampling, Version, Window, WorkerId
from spotlight.core.wire import Connection
from spotlight.core.work import Request, SlotClass, WeightsId, Work
from spotlight.node.blob_store import BlobStore
from spotlight.node.unloading import stored_commits
from spotlight.node.worker_core import commit_of

NODE, WORKER = NodeId("spot-1.1"), WorkerId("spot-1.1/0.1")
ROWS = 16
BATCHES = 3
COMMIT_EVERY = 2
STEPS = 10
REPEATS = 5
SETTINGS = {"rows": ROWS, "steps": STEPS, "commit_every": COMMIT_EVERY, "samples": ROWS * BATCHES}
WITHOUT_STORES = ("commits", "messages", "control")
STORED = "stored"
"""Bytes of flights and results, written to disk: in a run a thread of the worker does that beside the rollout."""
OVERHEADS = (*WITHOUT_STORES, STORED)


class Stopwatch:
    """Seconds by activity."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.perf_counter() - began


class OneWorker:
    """A worker's engine and the real controller's code, joined by a real socket, in one thread."""

    def __init__(self, stochastic: bool, seed: int, folder: Path) -> None:
        torch.set_num_threads(1)
        self.watch = Stopwatch()
        self.clock = RealClock()
        content = families.read_weights("words")
        adapter = families.build(content)
        adapter.transformer.requires_grad_(True)
        self.engine = Engine(adapter, Resident(adapter.transformer, content.digest), seed, ROWS, padded=False)
        self.digest = content.digest
        self.sampling = Sampling(steps=STEPS, size=adapter.native_size)
        if stochastic:
            self.sampling = msgspec.structs.replace(
                self.sampling, sampler=SamplerKind.FLOW_SDE, noise_level=0.7, window=Window(1, 3)
            )
        self.journal = Journal.create(folder / "journal", self.clock.now)
        ledger = Ledger(self.journal.append)
        payloads, self.store = PayloadFolder(folder, lambda: None), BlobStore(folder, WORKER)
        self.dispatcher = Dispatcher(ledger, Scheduler(ledger), payloads, self._note, lambda at: at, COMMIT_EVERY)
        self.here, self.there = (Connection(end) for end in socket.socketpair())

    def _note(self, event: AnyEvent) -> None:
        self.journal.append(event)

    def send(self, message: m.AnyMessage) -> None:
        """Send a worker's message through the socket, and let the controller process it."""
        with self.watch.on("messages"):
            self.here.send(m.Envelope(WORKER, message))
            received = self.there.recv()
        assert received is not None
        with self.watch.on("control"):
            message = received[0].message
            # The agent relays the commits of a step one after the other.
            for each in message.messages if isinstance(message, m.Commits) else (message,):
                self.dispatcher.handle(NODE, m.Envelope(WORKER, each), self.clock.now())

    def begin(self) -> int:
        """Register the worker and issue the work; return the number of samples."""
        weights = WeightsId(Version(0))
        self.dispatcher.node_joined(m.NodeHello(schema=SCHEMA, code="", node=NODE, slot_class=SlotClass.SPOT, slots=1))
        self.dispatcher.publish(weights, PublishedSet(self.digest, ""), [])
        prompts = world("words").prompts("train")[: BATCHES * 2]
        requests = [
            Request(
                work=Work.ROLLOUT,
                iteration=0,
                group=group,
                sample=Sample(prompt=prompt.id, seed=number, sampling=self.sampling, version=Version(0)),
            )
            for group, prompt in enumerate(prompts)
            for number in range(ROWS // 2)
        ]
        with self.watch.on("control"):
            self.dispatcher.issue(requests, prompts, list(range(len(prompts))))
        self.send(m.Hello(schema=SCHEMA, code="", node=NODE, slot_class=SlotClass.SPOT, rows=ROWS, pid=0))
        self.send(m.Held(weights=weights, digest=self.digest))
        return len(requests)

    def pull(self, grants: int) -> int:
        """Pull a batch and admit it; return the number of grants so far."""
        self.send(m.Pull(free_rows=self.engine.free_rows, answered=grants))
        given = [out.message for out in self.dispatcher.take_outbox() if isinstance(out.message, m.Grant)]
        for lease in (lease for grant in given for lease in grant.leases):
            with self.watch.on("steps"):
                self.engine.admit(lease.request, lease.prompt, lease.attempt)
        return grants + len(given)

    def step(self) -> int:
        """Take one denoising step with its messages; return the number of finished samples."""
        with self.watch.on("steps"):
            boundary = self.engine.step()
        progress = self.engine.progress()
        if progress and progress[0].step % COMMIT_EVERY == 0:
            with self.watch.on("commits"):
                commits = self.engine.commit([each.request for each in progress])
            with self.watch.on(STORED):
                message = stored_commits([(commit_of(row), row.flight or b"") for row in commits], self.store)
            self.send(message)
        self.send(m.Alive(progress=progress))
        for done in boundary.finished:
            with self.watch.on("steps"):
                payload = done.payload.to_bytes()
            with self.watch.on(STORED):
                ref = self.store.append_sample(done.request.iteration, payload)
            result = m.Result(
                request=done.request.id,
                attempt=done.attempt,
                digest=done.weights_digest,
                steps=done.steps,
                score=m.Score(reward=0.5),
                payload=ref,
            )
            self.send(result)
        return len(boundary.finished)


def measure(stochastic: bool, seed: int) -> dict[str, float]:
    """Seconds spent on steps, commits, messages and control for some batches of one worker."""
    with tempfile.TemporaryDirectory() as folder:
        worker = OneWorker(stochastic, seed, Path(folder))
        left, grants = worker.begin(), 0
        while left:
            grants = worker.pull(grants)
            while worker.engine.free_rows < ROWS:
                left -= worker.step()
        worker.journal.close()
    return worker.watch.seconds


def share(seconds: dict[str, float], parts: Sequence[str] = OVERHEADS) -> float:
    """Seconds of everything but the steps, over those of the steps."""
    return sum(seconds[what] for what in parts) / seconds["steps"]


def figures() -> dict[str, Figure]:
    runs = {name: [measure(name == "sde", seed) for seed in range(REPEATS)] for name in ("ode", "sde")}
    shares = {
        "overhead_share": [share(run) for run in runs["ode"]],
        "overhead_share_sde": [share(run) for run in runs["sde"]],
        "without_stores_share": [share(run, WITHOUT_STORES) for run in runs["ode"]],
        "without_stores_share_sde": [share(run, WITHOUT_STORES) for run in runs["sde"]],
        **{f"{what}_share": [run[what] / run["steps"] for run in runs["ode"]] for what in OVERHEADS},
    }
    return {name: Figure.median(values, "of rollout time") for name, values in shares.items()}
