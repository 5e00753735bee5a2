"""A real node of several slots, a real controller, and faults triggered by messages that the controller receives.

`CrewEnvironment` holds the slow, shared parts: the pool with its nursery, and the published weights. A `Story` is one
controller (hub, dispatcher, ledger) with one node and one small sample.
"""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from spotlight.assets import asset
from spotlight.compute.data.worlds import world
from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.config import ModelConfig
from spotlight.compute.rewards.config import Term
from spotlight.compute.rollout.seal import read_place
from spotlight.compute.train.config import NftConfig, TrainConfig
from spotlight.compute.weights import files
from spotlight.compute.weights.store import NodeStore
from spotlight.control.demand import Demands
from spotlight.control.directory import PublishedSet
from spotlight.control.dispatch import Dispatcher
from spotlight.control.ledger import Ledger
from spotlight.control.scheduler import Scheduler
from spotlight.control.scheduler.settings import SchedulerSettings
from spotlight.controller.door import Door
from spotlight.controller.hub import Hub
from spotlight.core import messages as m
from spotlight.core.blobs import BlobRef
from spotlight.core.clock import RealClock
from spotlight.core.events import (
    Accepted,
    AnyEvent,
    Crewing,
    Holding,
    Leased,
    Refused,
    Released,
    WorkerJoined,
    WorkerLost,
)
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, Sample, SamplerKind, Sampling, Version, Window, WorkerId
from spotlight.core.work import Request, SlotClass, WeightsId, Work
from spotlight.node.worker_settings import WorkerSettings
from spotlight.pools.config import ClusterConfig
from spotlight.pools.local import LocalPool, LocalPoolSettings
from spotlight.pools.machine import sockets

WEIGHTS = WeightsId(Version(0))
FACTS = facts_of("words")
PROMPT = world("words").held_out(1)[0]
PATIENCE_S = 90.0
"""Time limit of every wait; reached only when a test fails."""
COMMIT_EVERY = 1
WINDOW = Window(2, 4)
"""Recorded steps: a flight that resumes after a loss carries more than its latents."""


SILENCE_S = 30.0
"""Longer than a forward may take, so that the deadline of the step detects a hung worker."""
ELASTIC = {
    "speed_ups": tuple((FACTS.tokens(None), degree, 0.9 * degree) for degree in range(2, 5)),
    "measure": False,
    "hysteresis_s": 0.05,
    "step_floor_s": 10.0,
    "forming_s": 5.0,
    "quiesce_s": 2.0,
}
"""Speed-ups that make crews pay on any machine, with long deadlines for busy cores."""


def sample_of(steps: int) -> Request:
    sampling = Sampling(
        steps=steps, size=FACTS.world.size, sampler=SamplerKind.FLOW_SDE, noise_level=0.7, window=WINDOW
    )
    sample = Sample(prompt=PROMPT.id, seed=5, sampling=sampling, version=Version(0))
    return Request(work=Work.ROLLOUT, iteration=0, group=0, sample=sample)


class CrewEnvironment:
    """A pool without nodes, and weights to publish."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.controller = sockets(folder) / "controller.sock"
        self.token = secrets.token_hex(8)
        workers = WorkerSettings(
            run_seed=3, run_folder=str(folder), deterministic=True,
            model=ModelConfig(name="words", device="cpu"), train=TrainConfig(), algorithm=NftConfig(),
        )  # fmt: skip
        self.pool = LocalPool(
            LocalPoolSettings(
                run=folder, controller=self.controller, token=self.token,
                entry="spotlight.node.worker:entry", preload=("spotlight.node.worker",),
                worker_settings=workers.model_dump_json().encode(),
                rewards=(Term(name="jpeg", processes=1, timeout_s=60.0),),
                cluster=ClusterConfig(rows=4, silence_s=SILENCE_S, elastic=ELASTIC),
                heads=FACTS.heads, token_pixels=FACTS.token_pixels,
            )
        )  # fmt: skip
        content = files.read(asset("weights/words.safetensors"))
        state = {name: tensor.float() for name, tensor in content.weights.items()}
        stored = NodeStore(folder / "weights").publish(WEIGHTS, content.family, state, content.digest)
        self.weights = PublishedSet(stored.fingerprint, str(stored.path))

    @asynccontextmanager
    async def story(self, slots: int) -> AsyncIterator["Story"]:
        """A controller and a node whose workers all wait for work; both are closed at the end."""
        story = Story(self)
        async with story.controller():
            try:
                await story.add_node("spot-1", slots)
                yield story
            finally:
                for node in self.pool.nodes():
                    await self.pool.kill_node(node)


@dataclass(frozen=True)
class Outcome:
    """The accepted sample as the controller recorded it."""

    payload: bytes
    accepted: Accepted
    releases: tuple[Released, ...]
    leases: tuple[Leased, ...]

    @property
    def redone(self) -> int:
        """Steps that were done twice, as the ledger counts them."""
        return sum(release.redone for release in self.releases)


class Story:
    """One controller; `when` and `at_step` register faults, `outcome` waits for the sample."""

    def __init__(self, environment: CrewEnvironment) -> None:
        self.environment = environment
        self.events: list[AnyEvent] = []
        self.pids: dict[WorkerId, int] = {}
        self._handles: dict[WorkerId, int] = {}
        """Process handles: the pid of a dead worker may be reused before a signal is sent."""
        self.step = 0
        """Newest committed step."""
        self._awaited: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        self._door = Door(environment.token)
        ledger = Ledger(self._record)
        dispatcher = Dispatcher(
            ledger, Scheduler(ledger, SchedulerSettings(silence_s=2 * SILENCE_S)), self, self._record,
            run_clock=lambda at: at, commit_every=COMMIT_EVERY, demands=Demands(FACTS.tokens(None)),
        )  # fmt: skip
        self._hub = _ListeningHub(dispatcher, RealClock(), self._door.send)
        self._hub.listener = self._message_applied
        self._hub.dispatcher.publish(WEIGHTS, environment.weights, ())

    # -- actions -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[None]:
        await self._door.open(self.environment.controller, self._hub)
        ticking = asyncio.create_task(self._hub.tick_forever())
        try:
            yield
        finally:
            ticking.cancel()
            await self._door.close()
            for handle in self._handles.values():
                os.close(handle)

    async def add_node(self, name: str, slots: int) -> NodeId:
        """Add a node and wait until every worker holds the weights."""
        spec = NodeSpec(name=name, slot_class=SlotClass.SPOT, slots=slots, rows=4)
        node = await self.environment.pool.add_node(spec)
        await self.until(
            f"{slots} workers of {node} hold the weights",
            lambda: sum(worker.startswith(f"{node}/") for worker in self.ready()) >= slots,
        )
        return node

    def issue(self, steps: int) -> None:
        self._hub.dispatcher.issue([sample_of(steps)], [PROMPT], [0])
        self._hub.flush()

    def when(self, condition: Callable[[], bool], do: Callable[[], None]) -> None:
        """Call `do` once, after the first message for which the condition is true."""
        self._awaited.append((condition, do))

    def at_step(self, step: int, degree: int, do: Callable[[], None]) -> None:
        """Call `do` while a crew of this degree is in the middle of the step after this one."""
        self.when(lambda: self.step >= step and len(self.crew()) == degree, do)

    def send(self, number: int, *workers: WorkerId) -> None:
        """Send a signal to all of these workers at once, except those that are already dead."""
        for handle in [self._handles[worker] for worker in workers if worker in self._handles]:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)

    def node_ended(self, node: NodeId) -> None:
        """Pass on what the pool has seen, as a run does."""
        self._hub.node_ended(node)

    def kill(self, *workers: WorkerId) -> None:
        self.send(signal.SIGKILL, *workers)

    # -- reads ---------------------------------------------------------------------------------------------------------

    async def until(self, what: str, done: Callable[[], bool]) -> None:
        """Wait until `done` is true; it is checked after every message."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._hub.until(done)
        except TimeoutError:
            seen = "\n".join(str(event) for event in self.events[-30:])
            raise AssertionError(f"never happened: {what}; step {self.step}, crews {self.crews()}:\n{seen}") from None

    async def outcome(self) -> Outcome:
        """Wait for the sample; it must be accepted once and never refused."""
        await self.until("the sample is accepted", lambda: bool(self.of(Accepted)))
        assert not self._awaited, "the sample ended before every fault was triggered"
        (accepted,) = self.of(Accepted)
        assert not self.of(Refused)
        payload = read_place(self.environment.folder / accepted.payload)
        return Outcome(payload, accepted, tuple(self.of(Released)), tuple(self.of(Leased)))

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]

    def crews(self) -> tuple[tuple[WorkerId, ...], ...]:
        events = self.of(Crewing)
        return events[-1].crews if events else ()

    def crew(self) -> tuple[WorkerId, ...]:
        """Members of the largest crew, leader first; empty if there is no crew."""
        return max(self.crews(), key=len, default=())

    def degrees(self) -> list[int]:
        """Degree of the largest crew after each change of crews."""
        return [max((len(crew) for crew in event.crews), default=1) for event in self.of(Crewing)]

    def holder(self) -> WorkerId:
        """The last worker that received the sample."""
        return self.of(Leased)[-1].worker

    def ready(self) -> list[WorkerId]:
        """Live workers that hold the weights."""
        lost = {event.worker for event in self.of(WorkerLost)}
        return [event.worker for event in self.of(Holding) if event.worker not in lost]

    def lost(self) -> dict[WorkerId, str]:
        """Lost workers and the cause of each loss."""
        return {event.worker: event.cause for event in self.of(WorkerLost)}

    # -- callbacks of the dispatcher and the hub -----------------------------------------------------------------------

    def release(self, refs: Sequence[BlobRef]) -> None:
        pass

    def writer_gone(self, writer: str, needed: Callable[[], Mapping[str, int]]) -> None:
        pass

    def _record(self, event: AnyEvent) -> None:
        self.events.append(event)
        if isinstance(event, WorkerJoined):
            self.pids[event.worker] = event.pid
            with contextlib.suppress(ProcessLookupError):
                self._handles[event.worker] = os.pidfd_open(event.pid)

    def _message_applied(self, message: m.AnyMessage) -> None:
        if isinstance(message, m.Commit):
            self.step = max(self.step, message.step)
        due = [each for each in self._awaited if each[0]()]
        self._awaited = [each for each in self._awaited if each not in due]
        for _, do in due:
            do()


class _ListeningHub(Hub):
    """Calls `listener` with every message, after it was applied."""

    listener: Callable[[m.AnyMessage], None]

    def receive(self, node: NodeId, envelope: m.Envelope) -> None:
        super().receive(node, envelope)
        self.listener(envelope.message)
