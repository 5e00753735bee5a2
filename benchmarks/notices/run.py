"""A paced run whose spot nodes receive one notice after another, followed by its journal."""

import asyncio
import itertools
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from benchmarks.lib.figures import Figure
from benchmarks.lib.merge import read as read_kept
from benchmarks.lib.merge import write
from benchmarks.notices.cloud_server import PREEMPTED, CloudServer, Exchange, Reply, not_found
from spotlight.core.errors import InputError
from spotlight.core.events import Accepted, Dropped, Leased, NoticeGiven, NoticeWithdrawn, Record, Released, RunStarted
from spotlight.core.journal import read
from spotlight.core.segments import list_segments
from spotlight.core.types import WorkerId
from spotlight.core.work import RequestId

SOURCES = ("aws", "gcp", "azure", "file")
RECIPE = "words-large-nft"
LONG = (
    "iterations=2", "cluster.reserved=1", "cluster.rows=8", "cluster.pace=h200-qwen-image-512", "eval.every=1000",
    "eval.prompts=2", "eval.steps=2", "explore.enabled=off", "rollout.prompts=512", "rollout.group_size=16",
    "rollout.steps=20", "reward.processes=1", "output.name=run", "output.journal.sync=never",
)  # fmt: skip
"""One phase of rollouts that is longer than the benchmark; a batch of 8 takes 7 s, longer than the notice."""
START_S, ANSWER_S, POLL_S = 300.0, 30.0, 0.01
STEADY_S = (1.0, 2.0)
"""Range of seconds that a node serves between two tries."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int
    seconds: float


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """One notice."""

    source: str
    held: int
    """Samples of the node when the notice became visible."""
    scheduler_s: float | None
    """Seconds until the scheduler had it; None: not before the deadline."""
    unsafe: int
    """Samples of the node at the deadline."""
    spare_s: float | None
    """Seconds from the end of its last sample to the deadline; None if it had samples then."""
    withdrawn_s: float | None
    """Seconds from the withdrawal until the scheduler used the node as before."""


class Tries(msgspec.Struct, kw_only=True):
    setup: Setup
    tries: list[Try] = []


class Clouds(CloudServer):
    """The metadata services of several nodes, told apart by the first part of the path."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.of_node: dict[str, CloudServer] = {}

    def chosen(self, exchange: Exchange) -> Reply:
        node, _, rest = exchange.path[1:].partition("/")
        exchange.path = f"/{rest}"
        return self.of_node[node].chosen(exchange) if node in self.of_node else not_found


class Follower:
    """Follows the journal of a live run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = -1
        self._started = 0.0
        self._holders: dict[RequestId, str] = {}
        self.held: dict[str, list[tuple[float, int]]] = {}
        """Number of samples of each node after every change, with its wall time."""
        self.notices: dict[str, list[tuple[float, bool]]] = {}
        """Wall times of the notices of each node, and whether one was in force from then on."""

    async def follow(self) -> None:
        while True:
            if self._folder.is_dir() and list_segments(self._folder):
                for record in read(self._folder, self._seen):
                    self._add(record)
            await asyncio.sleep(POLL_S)

    def now_held(self, node: str) -> int:
        return self.held[node][-1][1] if self.held.get(node) else 0

    def _add(self, record: Record) -> None:
        self._seen = record.seq
        wall = self._started + record.at
        match record.event:
            case RunStarted(wall=started):
                self._started = started - record.at
            case Leased(request=request, worker=worker):
                self._moved(request, name_of(worker), wall)
            case Released(request=request) | Accepted(request=request) | Dropped(request=request):
                self._moved(request, None, wall)
            case NoticeGiven(worker=worker):
                self.notices.setdefault(name_of(worker), []).append((wall, True))
            case NoticeWithdrawn(worker=worker):
                self.notices.setdefault(name_of(worker), []).append((wall, False))
            case _:
                pass

    def _moved(self, request: RequestId, to: str | None, wall: float) -> None:
        for node, change in ((self._holders.pop(request, None), -1), (to, 1)):
            if node is not None:
                self.held.setdefault(node, []).append((wall, self.now_held(node) + change))
        if to is not None:
            self._holders[request] = to


def name_of(worker: WorkerId) -> str:
    """Name of the worker's node, without its incarnation."""
    return worker.partition("/")[0].rpartition(".")[0]


def measure(setup: Setup, count: int, kept: Path | None) -> list[Try]:
    """Make the tries that are still missing in `kept`."""
    done = read_kept(kept, Tries, "notices") if kept and kept.exists() else Tries(setup=setup)
    if done.setup != setup:
        raise InputError(f"{kept} has tries of {done.setup}, not of {setup}; choose another --out, or delete it.")
    if len(done.tries) < count:
        with TemporaryDirectory(prefix="notices-") as folder:
            asyncio.run(_Bench(setup, count, done, kept, Path(folder)).run())
    return done.tries[:count]


class _Bench:
    def __init__(self, setup: Setup, count: int, done: Tries, kept: Path | None, folder: Path) -> None:
        self._setup = setup
        self._count = count
        self._done = done
        self._kept = kept
        self._folder = folder
        self._clouds = Clouds()
        self._follower = Follower(folder / "runs" / "run" / "journal")
        self._begun = itertools.count(len(done.tries))
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)

    async def run(self) -> None:
        names = [f"spot-{number}" for number in range(1, self._setup.nodes + 1)]
        async with self._clouds, self._running() as process:
            self._clouds.of_node = {name: CloudServer() for name in names}
            following = asyncio.create_task(self._follower.follow())
            tries = asyncio.gather(*map(self._try_node, names))
            ended = asyncio.create_task(asyncio.to_thread(process.wait))
            waited: list[asyncio.Future[Any]] = [tries, ended, following]
            try:
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    raise SystemExit(f"the run ended: {(self._folder / 'log').read_text(errors='replace')[-3000:]}")
                for task in (following, tries):
                    if task.done():
                        task.result()
            finally:
                tries.cancel()
                following.cancel()

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[subprocess.Popen[bytes]]:
        sources = f"[aws, gcp, azure, 'file:{self._folder}/{{node}}.gone']"
        settings = [
            *LONG, f"cluster.spot={self._setup.nodes}", f"cluster.notices.sources={sources}",
            f"cluster.notices.grace_s={self._setup.seconds}",
            f"cluster.notices.metadata_url={self._clouds.url}/{{node}}",
        ]  # fmt: skip
        command = [sys.executable, "-m", "spotlight.surface.cli.main", "train", RECIPE]
        command += [part for setting in settings for part in ("--set", setting)]
        with (self._folder / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)
        try:
            yield process
        finally:
            # The second signal stops the run in the middle of its iteration.
            for _ in range(2):
                process.send_signal(signal.SIGINT)
                await asyncio.sleep(1.0)
            try:
                await asyncio.to_thread(process.wait, 60)
            except subprocess.TimeoutExpired:
                process.kill()

    async def _try_node(self, node: str) -> None:
        await self._until(lambda: self._follower.now_held(node) > 0, START_S)
        turn = int(node.rpartition("-")[2]) - 1
        for source in _cycle(turn):
            if (number := next(self._begun)) >= self._count:
                return
            # At any phase of the polls.
            await asyncio.sleep(random.Random(number).uniform(*STEADY_S))
            if not await self._until(lambda: self._follower.now_held(node) > 0, START_S):
                raise SystemExit(f"{node} received no more samples; the run's log: {self._folder / 'log'}")
            made = await self._try(node, source)
            self._done.tries.append(made)
            if self._kept is not None:
                write(self._kept, self._done)
            print(f"try {number + 1} of {self._count}: {_sentence(made)}", file=sys.stderr, flush=True)

    async def _try(self, node: str, source: str) -> Try:
        follower = self._follower
        held, seen, visible = follower.now_held(node), len(follower.notices.get(node, [])), time.time()
        deadline = visible + self._setup.seconds
        await self._announce(node, source)
        await asyncio.sleep(max(0.0, deadline - time.time()) + 10 * POLL_S)
        before = [entry for entry in follower.held[node] if entry[0] <= deadline]
        unsafe, since = before[-1][1], before[-1][0]
        given = [wall for wall, is_given in follower.notices.get(node, [])[seen:] if is_given and wall <= deadline]
        withdrawn = time.time()
        await self._withdraw(node, source)
        is_used = await self._until(lambda: follower.notices.get(node, [(0.0, True)])[-1][1] is False, ANSWER_S)
        return Try(
            source=source,
            held=held,
            scheduler_s=given[0] - visible if given else None,
            unsafe=unsafe,
            spare_s=None if unsafe else deadline - since,
            withdrawn_s=follower.notices[node][-1][0] - withdrawn if is_used else None,
        )

    async def _announce(self, node: str, source: str) -> None:
        """The services round times to seconds; none says later than the deadline."""
        cloud, seconds = self._clouds.of_node[node], self._setup.seconds
        match source:
            case "aws":
                cloud.interrupt(seconds - 0.5)
            case "gcp":
                await cloud.set_key(PREEMPTED, "TRUE")
            case "azure":
                cloud.schedule(seconds)
            case _:
                (self._folder / f"{node}.gone").touch()

    async def _withdraw(self, node: str, source: str) -> None:
        cloud = self._clouds.of_node[node]
        match source:
            case "aws":
                cloud.interruption = None
            case "gcp":
                await cloud.set_key(PREEMPTED, "FALSE")
            case "azure":
                cloud.set_events()
            case _:
                (self._folder / f"{node}.gone").unlink()

    async def _until(self, is_so: Callable[[], bool], limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while not is_so():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True


def _cycle(start: int) -> Iterator[str]:
    return itertools.islice(itertools.cycle(SOURCES), start % len(SOURCES), None)


def _sentence(made: Try) -> str:
    seen = "never" if made.scheduler_s is None else f"{made.scheduler_s:.2f} s"
    safe = f"{made.unsafe} samples unsafe" if made.spare_s is None else f"safe {made.spare_s:.2f} s early"
    return f"{made.source}: {made.held} samples, at the scheduler after {seen}, {safe}"


def figures_of(tries: Sequence[Try]) -> dict[str, Figure]:
    safe = sum(one.unsafe == 0 for one in tries)
    figures = {
        "committed_in_time": Figure.single(safe, f"of {len(tries)} tries without a step to lose at the deadline"),
        "spare_s": Figure.median(
            [one.spare_s for one in tries if one.spare_s is not None] or [0.0], "s from the last commit to the deadline"
        ),
        "samples_held": Figure.median([one.held for one in tries], "samples of the node at the notice"),
    }
    for name, chosen in (("all", SOURCES), *((source, (source,)) for source in SOURCES)):
        taken = [one for one in tries if one.source in chosen]
        times = {
            f"{name}_to_scheduler_s": [one.scheduler_s for one in taken],
            f"{name}_withdrawn_s": [one.withdrawn_s for one in taken],
        }
        for figure, values in times.items():
            known = [value for value in values if value is not None]
            if known:
                figures[figure] = Figure.median(known, f"s to the scheduler, {len(known)} of {len(values)} tries")
    return figures
