"""How long a crew stands still when one of its ranks is killed in the middle of a step: real processes, real SIGKILLs.

    python -m benchmarks.regroup [--quick] [--kills 60] [--device cpu] [--json] [--out docs/results/regroup]

One node of four slots works on one sample of `words`, which all four share. Again and again one of them, leader or
follower, is killed at a random moment of a step; the clock runs until the controller has the next step that the
survivors completed. Apart: `detect` (until the agent has broken the crew), `form` (until the survivors' crew is ready;
followers' deaths only, since a leader's sample first goes back to the controller) and `resume` (until its first step).
Then the slot returns and the crew grows again. Against it, in the same run, the crew's processes are started anew:
`zygote`, all of the node from a process that has imported everything already, and `cold`, that one as well.
"""

import argparse
import asyncio
import json
import os
import random
import secrets
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from benchmarks.learn.figures import Figure
from benchmarks.lib.provenance import provenance
from spotlight.compute.data.worlds import world
from spotlight.compute.models import families
from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.config import ModelConfig
from spotlight.compute.train.config import NftConfig, TrainConfig
from spotlight.compute.weights.store import NodeStore
from spotlight.control.demand import Demands
from spotlight.control.directory import PublishedSet
from spotlight.control.dispatch import Dispatcher
from spotlight.control.ledger import Ledger
from spotlight.control.scheduler import Scheduler
from spotlight.core import messages as m
from spotlight.core.clock import RealClock
from spotlight.core.events import AnyEvent, Crewing, WorkerJoined
from spotlight.core.types import NodeId, Sample, Sampling, Version, WorkerId
from spotlight.core.work import Request, SlotClass, WeightsId, Work
from spotlight.runtime.config import ClusterConfig
from spotlight.runtime.devices import assign, probe
from spotlight.runtime.hub import Hub, SocketDoor
from spotlight.runtime.local_pool import LocalPool, LocalPoolSettings
from spotlight.runtime.pool import NodeSpec
from spotlight.runtime.worker_settings import WorkerSettings

WEIGHTS = WeightsId(Version(0))
SLOTS = 4
STEPS = 100_000
"""Of the one sample: more than the benchmark can take."""
SETTLED_STEPS = 3
"""Steps of the whole crew between two kills."""
PATIENCE_S = 120.0
SPEED_UPS = tuple((48, degree, 0.9 * degree) for degree in range(2, SLOTS + 1))
"""As if sharing paid on this machine: the crew is to have all slots, however few cores there are."""


@dataclass
class Seen:
    """What the controller heard, and when."""

    commits: list[tuple[float, int]] = field(default_factory=list)
    crewings: list[tuple[float, Crewing]] = field(default_factory=list)
    pids: dict[WorkerId, int] = field(default_factory=dict)


class NoPayloads:
    def keep(self, request: Request, blob: bytes) -> tuple[str, str] | None:
        return None


class WatchingHub(Hub):
    """Notes when commits arrive."""

    seen: Seen

    def receive(self, node: NodeId, envelope: m.Envelope, blob: bytes) -> None:
        if isinstance(envelope.message, m.Commit):
            self.seen.commits.append((time.monotonic(), envelope.message.step))
        super().receive(node, envelope, blob)


class Bench:
    """A controller with one sample to make, and one node of four slots."""

    def __init__(self, folder: Path, device: str) -> None:
        self.seen = Seen()
        self._device = device
        self._folder = folder
        self._facts = facts_of("words")
        door = self._door = SocketDoor(secrets.token_hex(8))
        ledger = Ledger()
        dispatcher = Dispatcher(
            ledger, Scheduler(ledger), NoPayloads(), self._note, run_clock=lambda at: at, commit_every=1,
            demands=Demands(self._facts.tokens),
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
        sampling = Sampling(steps=STEPS, size=self._facts.world.size)
        sample = Sample(prompt=prompt.id, seed=0, sampling=sampling, version=Version(0))
        self._publish()
        self._hub.dispatcher.issue([Request(work=Work.ROLLOUT, iteration=0, group=0, sample=sample)], [prompt], [0])
        try:
            yield
        finally:
            ticking.cancel()
            await self._door.close()

    def _publish(self) -> None:
        """The shipped weights as version 0, from where every worker takes them."""
        content = families.read_weights("words")
        state = dict(families.build(content).transformer.named_parameters())
        stored = NodeStore(self._folder / "weights").publish(WEIGHTS, content.family, state, content.digest)
        self._hub.dispatcher.publish(WEIGHTS, PublishedSet(stored.fingerprint, str(stored.path)), ())

    async def start_pool(self) -> None:
        cluster = ClusterConfig(
            slots=SLOTS,
            rows=1,
            share_devices=True,
            elastic={"speed_ups": SPEED_UPS, "measure": False, "hysteresis_s": 0.2},
        )
        self.pool = LocalPool(
            LocalPoolSettings(
                run=self._folder, controller=self._folder / "hub.sock", token=self._door.token,
                entry="spotlight.runtime.worker:entry", preload=("spotlight.runtime.worker",),
                worker_settings=self._settings.model_dump_json().encode(), reward="ocr_graded",
                reward_processes=1, reward_timeout_s=60.0,
                cluster=cluster, heads=self._facts.heads, token_pixels=self._facts.token_pixels,
                devices=assign(cluster, probe(self._device), self._device),
            )
        )  # fmt: skip
        await self.pool.start()

    async def start_node(self) -> None:
        assert self.pool is not None
        spec = NodeSpec(name="spot-1", slot_class=SlotClass.SPOT, slots=SLOTS, rows=1)
        self.node = await self.pool.add_node(spec)

    async def until(self, what: str, done: object) -> None:
        """Looked at after every message."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._hub.until(done)  # type: ignore[arg-type]
        except TimeoutError:
            sys.exit(f"regroup: {what} did not happen within {PATIENCE_S:g} s; see the logs in {self._folder}.")

    def crew(self) -> tuple[WorkerId, ...]:
        """The members of the largest crew now, leader first."""
        crews = self.seen.crewings[-1][1].crews if self.seen.crewings else ()
        return max(crews, key=len, default=())

    async def whole_crew(self) -> None:
        """All four, after some steps together."""
        while True:
            await self.until("a crew of all slots", lambda: len(self.crew()) == SLOTS)
            told = len(self.seen.crewings)
            await self.steps(SETTLED_STEPS)
            if len(self.seen.crewings) == told:
                return

    async def steps(self, count: int) -> None:
        goal = len(self.seen.commits) + count
        await self.until("steps of the crew", lambda: len(self.seen.commits) >= goal)


@dataclass(frozen=True)
class Kill:
    """Seconds from the SIGKILL."""

    leader: bool
    detect: float
    form: float | None
    resume: float | None
    total: float


async def kill_once(bench: Bench, rank: int, rng: random.Random) -> Kill:
    """One rank of the crew dies in the middle of a step."""
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
    """When there was a crew again, after the one that told of the loss."""
    return next((at for at, told in seen.crewings[crewings + 1 :] if any(len(crew) > 1 for crew in told.crews)), None)


async def relaunch(bench: Bench, cold: bool) -> float:
    """From nothing to the first steps of the whole crew, after all its processes were killed."""
    assert bench.pool is not None
    assert bench.node is not None
    if cold:
        await bench.pool.stop()
    else:
        await bench.pool.kill_node(bench.node)
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
                await bench.pool.stop()
    return done, warm, cold


def figures_of(kills: Sequence[Kill], warm: Sequence[float], cold: Sequence[float]) -> dict[str, Figure]:
    totals = [kill.total for kill in kills]
    parts = {
        "detect": [kill.detect for kill in kills],
        "form": [kill.form for kill in kills if kill.form is not None],
        "resume": [kill.resume for kill in kills if kill.resume is not None],
        "leader_regroup": [kill.total for kill in kills if kill.leader],
        "follower_regroup": [kill.total for kill in kills if not kill.leader],
    }
    figures = {
        "regroup_p50_s": _figure(statistics.median(totals), totals, "s"),
        "regroup_p99_s": _figure(_p99(totals), totals, "s"),
    }
    for name, values in parts.items():
        figures[f"{name}_s"] = _figure(statistics.median(values), values, "s, median")
        figures[f"{name}_p99_s"] = _figure(_p99(values), values, "s")
    figures["relaunch_cold_s"] = _figure(statistics.median(cold), cold, "s, median")
    figures["relaunch_zygote_s"] = _figure(statistics.median(warm), warm, "s, median")
    typical = statistics.median(totals)
    for name, values in (("speedup_vs_relaunch", cold), ("speedup_vs_zygote", warm)):
        ratios = [value / typical for value in values]
        figures[name] = _figure(statistics.median(ratios), ratios, "times, medians")
    return figures


def _figure(value: float, values: Sequence[float], unit: str) -> Figure:
    return Figure(value=value, low=min(values), high=max(values), unit=unit)


def _p99(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, -(-99 * len(ordered) // 100) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--relaunches", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="12 kills and one relaunch of each kind: within a minute")
    parser.add_argument("--device", default="cpu", help="of the workers; on one GPU they share it")
    parser.add_argument("--out", type=Path, help="also write the figures to this file")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    kills, relaunches = (12, 1) if args.quick else (args.kills, args.relaunches)
    done, warm, cold = asyncio.run(measure(kills, relaunches, args.device))
    figures = figures_of(done, warm, cold)
    for name, figure in figures.items():
        print(f"{name:24} {figure.value:10.4f}  ({figure.low:.4f} .. {figure.high:.4f}) {figure.unit}")
    summary = {
        "benchmark": "regroup",
        **provenance(),
        "seeds": [0],
        "settings": {"slots": SLOTS, "kills": kills, "relaunches": relaunches, "model": "words", "device": args.device},
        "figures": msgspec.to_builtins(figures),
    }
    if args.out is not None:
        args.out.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")
    if args.json:
        print(json.dumps(summary))
