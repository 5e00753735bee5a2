"""A node of four slots, its controller, and SIGKILLs: seconds until the survivors continue."""

import asyncio
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.regroup.figures import Kill
from spotlight.compute.data.worlds import world
from spotlight.compute.models import families
from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.config import ModelConfig
from spotlight.compute.rewards.config import Term
from spotlight.compute.train.config import NftConfig, TrainConfig
from spotlight.compute.weights.store import NodeStore
from spotlight.control.demand import Demands
from spotlight.control.directory import PublishedSet
from spotlight.control.dispatch import Dispatcher
from spotlight.control.elastic.config import ElasticConfig
from spotlight.control.ledger import Ledger
from spotlight.control.scheduler import Scheduler
from spotlight.controller.door import Door
from spotlight.controller.hub import Hub
from spotlight.core import messages as m
from spotlight.core.blobs import BlobRef
from spotlight.core.clock import RealClock
from spotlight.core.events import AnyEvent, Crewing, WorkerJoined
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, Sample, Sampling, Version, WorkerId
from spotlight.core.work import Request, SlotClass, WeightsId, Work
from spotlight.node.worker_settings import WorkerSettings
from spotlight.pools.config import ClusterConfig
from spotlight.pools.devices import assign, probe
from spotlight.pools.local import LocalPool, LocalPoolSettings

WEIGHTS = WeightsId(Version(0))
SLOTS = 4
STEPS = 100_000
"""Steps of the one sample: more than the benchmark takes."""
SETTLED_STEPS = 3
"""Steps of the whole crew between two kills."""
PATIENCE_S = 120.0
SPEED_UPS = tuple((48, degree, 0.9 * degree) for degree in range(2, SLOTS + 1))
"""As if sharing paid on this machine, so that the crew has all slots even on few cores."""


@dataclass
class Seen:
    """Messages that the controller received, with their times."""

    commits: list[tuple[float, int]] = field(default_factory=list)
    crewings: list[tuple[float, Crewing]] = field(default_factory=list)
    pids: dict[WorkerId, int] = field(default_factory=dict)


class NoPayloads:
    def release(self, refs: Sequence[BlobRef]) -> None:
        pass

    def writer_gone(self, writer: str, needed: Callable[[], Mapping[str, int]]) -> None:
        pass


class WatchingHub(Hub):
    """Records the arrival of commits."""

    seen: Seen

    def receive(self, node: NodeId, envelope: m.Envelope) -> None:
        if isinstance(envelope.message, m.Commit):
            self.seen.commits.append((time.monotonic(), envelope.message.step))
        super().receive(node, envelope)


class Bench:
    """A controller with one sample to make, and one node of four slots."""

    def __init__(self, folder: Path, device: str) -> None:
        self.seen = Seen()
        self._device = device
        self._folder = folder
        self._facts = facts_of("words")
        door = self._door = Door(secrets.token_hex(8))
        ledger = Ledger()
        dispatcher = Dispatcher(
            ledger, Scheduler(ledger), NoPayloads(), self._note, run_clock=lambda at: at, commit_every=1,
            demands=Demands(self._facts.tokens(None)),
        )  # fmt: skip
        self._hub = WatchingHub(dispatcher, RealClock(), door.send)
        self._hub.seen = self.seen
        self._settings = WorkerSettings(
            run_seed=0, run_folder=str(folder), deterministic=False,
            model=ModelConfig(name="words", device=device), train=TrainConfig(), algorithm=NftConfig(),
        )  # fmt: skip
        self.node: NodeId | None = None
        self.pool: LocalPool | None = None

    def _note(self, event: AnyEvent) -> None:
        match event:
            case Crewing():
                self.seen.crewings.append((time.monotonic(), event))
            case WorkerJoined():
                self.seen.pids[event.worker] = event.pid

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[None]:
        await self._door.open(self._folder / "hub.sock", self._hub)
        ticking = asyncio.create_task(self._hub.tick_forever())
        prompt = world("words").held_out(1)[0]
        sampling = Sampling(steps=STEPS, size=self._facts.default_size)
        sample = Sample(prompt=prompt.id, seed=0, sampling=sampling, version=Version(0))
        self._publish()
        self._hub.dispatcher.issue([Request(work=Work.ROLLOUT, iteration=0, group=0, sample=sample)], [prompt], [0])
        try:
            yield
        finally:
            ticking.cancel()
            await self._door.close()

    def _publish(self) -> None:
        """Publish the shipped weights as version 0 for all workers."""
        content = families.read_weights("words")
        state = dict(families.build(content).transformer.named_parameters())
        stored = NodeStore(self._folder / "weights").publish(WEIGHTS, content.family, state, content.digest)
        self._hub.dispatcher.publish(WEIGHTS, PublishedSet(stored.fingerprint, str(stored.path)), ())

    async def start_pool(self) -> None:
        cluster = ClusterConfig(
            slots=SLOTS,
            rows=1,
            share_devices=True,
            elastic=ElasticConfig(speed_ups=SPEED_UPS, measure=False, hysteresis_s=0.2),
        )
        self.pool = LocalPool(
            LocalPoolSettings(
                run=self._folder, controller=self._folder / "hub.sock", token=self._door.token,
                entry="spotlight.node.worker:entry", preload=("spotlight.node.worker",),
                worker_settings=self._settings.model_dump_json().encode(),
                rewards=(Term(name="ocr_graded", processes=1, timeout_s=60.0),),
                cluster=cluster, heads=self._facts.heads, token_pixels=self._facts.token_pixels,
                devices=assign(cluster, probe(self._device), self._device),
            )
        )  # fmt: skip
        await self.pool.start()

    async def start_node(self) -> None:
        assert self.pool is not None
        spec = NodeSpec(name="spot-1", slot_class=SlotClass.SPOT, slots=SLOTS, rows=1)
        self.node = await self.pool.add_node(spec)

    def node_ended(self, node: NodeId) -> None:
        """Pass on what the pool has seen, as a run does; else the node's connection could still be resumed."""
        self._hub.node_ended(node)

    async def until(self, what: str, done: object) -> None:
        """Wait until `done`, which is checked after every message."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._hub.until(done)  # type: ignore[arg-type]
        except TimeoutError:
            sys.exit(f"regroup: {what} did not happen within {PATIENCE_S:g} s; see the logs in {self._folder}.")

    def crew(self) -> tuple[WorkerId, ...]:
        """Members of the largest present crew, leader first."""
        crews = self.seen.crewings[-1][1].crews if self.seen.crewings else ()
        return max(crews, key=len, default=())

    async def whole_crew(self) -> None:
        """Wait until all four have taken some steps together."""
        while True:
            await self.until("a crew of all slots", lambda: len(self.crew()) == SLOTS)
            changes = len(self.seen.crewings)
            await self.steps(SETTLED_STEPS)
            if len(self.seen.crewings) == changes:
                return

    async def steps(self, count: int) -> None:
        goal = len(self.seen.commits) + count
        await self.until("steps of the crew", lambda: len(self.seen.commits) >= goal)


async def kill_once(bench: Bench, rank: int, rng: random.Random) -> Kill:
    """Kill one rank of the crew in the middle of a step."""
    await bench.whole_crew()
    seen = bench.seen
    victim = bench.crew()[rank]
    recent = [at for at, _ in seen.commits[-SETTLED_STEPS:]]
    await asyncio.sleep(rng.random() * (recent[-1] - recent[0]) / (len(recent) - 1))
    crewings = len(seen.crewings)
    killed = time.monotonic()
    os.kill(seen.pids[victim], signal.SIGKILL)
    await bench.until("the news of the loss", lambda: len(seen.crewings) > crewings)
    broken = seen.crewings[crewings][0]
    commits = len(seen.commits)
    await bench.until("the survivors' next step", lambda: len(seen.commits) > commits)
    total = seen.commits[commits][0] - killed
    await bench.until("the survivors' crew", lambda: _formed_after(seen, crewings) is not None)
    formed = _formed_after(seen, crewings) or 0.0
    await bench.until("the survivors' crew's step", lambda: seen.commits[-1][0] > formed)
    resumed = next(at for at, _ in seen.commits if at > formed)
    in_order = rank != 0
    return Kill(
        leader=rank == 0,
        detect=broken - killed,
        form=formed - broken if in_order else None,
        resume=resumed - formed if in_order else None,
        total=total,
    )


def _formed_after(seen: Seen, crewings: int) -> float | None:
    """Time of the first crew after the report of the loss."""
    later = seen.crewings[crewings + 1 :]
    return next((at for at, report in later if any(len(crew) > 1 for crew in report.crews)), None)


async def relaunch(bench: Bench, cold: bool) -> float:
    """Kill all processes of the crew; return the seconds to the first steps of the whole new crew."""
    assert bench.pool is not None
    assert bench.node is not None
    if cold:
        await bench.pool.stop()
    else:
        await bench.pool.kill_node(bench.node)
    bench.node_ended(bench.node)
    bench.seen.crewings.clear()
    commits = len(bench.seen.commits)
    began = time.monotonic()
    if cold:
        await bench.start_pool()
    await bench.start_node()
    await bench.until("a crew of all slots", lambda: len(bench.crew()) == SLOTS)
    count = max(commits, len(bench.seen.commits))
    await bench.until("its first step", lambda: len(bench.seen.commits) > count)
    return time.monotonic() - began


async def measure(kills: int, relaunches: int, device: str) -> tuple[list[Kill], list[float], list[float]]:
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), device)
        async with bench.controller():
            await bench.start_pool()
            try:
                await bench.start_node()
                done = []
                for number in range(kills):
                    done.append(await kill_once(bench, number % SLOTS, rng))
                    last = done[-1]
                    print(f"kill {number + 1}: {'leader' if last.leader else 'follower'} {last}", file=sys.stderr)
                warm = [await relaunch(bench, cold=False) for _ in range(relaunches)]
                cold = [await relaunch(bench, cold=True) for _ in range(relaunches)]
            finally:
                assert bench.pool is not None
                await bench.pool.stop()
    return done, warm, cold
