"""A paced run on a Ray cluster whose spot nodes are all killed at once, again and again, and its journal."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.lib.figures import Figure
from benchmarks.lib.namespaces import namespaces
from benchmarks.lib.ray_cluster import LocalRayCluster
from spotlight.control.ledger.audit import audit
from spotlight.core.events import Accepted, Dropped, Leased, Record, Released, RunStarted, StepCommitted
from spotlight.core.journal import read
from spotlight.core.types import WorkerId
from spotlight.core.work import ReleaseReason, RequestId

RECIPE = "words-large-nft"
SETTINGS = (
    "iterations=10000", "cluster.pool=ray", "cluster.reserved=1", "cluster.rows=4", "cluster.pace=h200-qwen-image-512",
    "cluster.pace_speed=4", "eval.every=10000", "eval.prompts=2", "eval.steps=2", "explore.enabled=off",
    "rollout.prompts=4", "rollout.group_size=8", "rollout.steps=20", "reward.processes=1", "output.name=run",
    "output.journal.sync=never",
)  # fmt: skip
START_S, POLL_S = 300.0, 0.2


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int
    rounds: int
    away_s: float
    network: bool
    """Whether each node has a network namespace, so that its connections are not told of its end."""

    @property
    def names(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.nodes + 1)]


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Wall times of one round."""

    killed: float
    """After the last kill."""
    back: float
    """When the nodes were started again."""
    end: float


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """What one loss cost."""

    kills_s: float
    """Seconds from the first to the last kill."""
    lost: int
    """Samples that the lost nodes held."""
    freed_s: float
    """Seconds until the last of them was free for others."""
    redone: int
    """Denoising steps of theirs that are redone."""
    next_sample_s: float
    """Seconds until the next sample was accepted."""
    steps_away: int
    """Optimizer steps committed between the loss and the return."""
    back_s: float
    """Seconds from the start of the nodes' Ray until all of them had finished a sample; import of Ray included."""


class Journal:
    """The journal of a live run, by wall time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def records(self) -> list[tuple[float, Record]]:
        if not self._folder.is_dir():
            return []
        found = list(read(self._folder))
        starts = [record.event.wall - record.at for record in found if isinstance(record.event, RunStarted)]
        return [(starts[0] + record.at, record) for record in found] if starts else []


def measure(setup: Setup) -> list[Round]:
    with TemporaryDirectory(prefix="bulk-loss-") as folder, _cluster(setup) as cluster:
        for name in setup.names:
            cluster.add(name)
        cluster.settle()
        with _running(Path(folder), cluster) as process:
            bench = _Bench(setup, cluster, process, Journal(Path(folder) / "runs" / "run" / "journal"))
            rounds = [bench.round(number) for number in range(1, setup.rounds + 1)]
        found = audit([record for _, record in bench.journal.records()])
        if not found.clean:
            raise SystemExit("the run is not clean:\n" + "\n".join(found.sentences()))
    return rounds


class _Bench:
    def __init__(
        self, setup: Setup, cluster: LocalRayCluster, process: subprocess.Popen[bytes], journal: Journal
    ) -> None:
        self._setup = setup
        self._cluster = cluster
        self._process = process
        self.journal = journal
        self._names = setup.names
        self._machines = set(map(machine, setup.names))

    def round(self, number: int) -> Round:
        since = time.time()
        self._until(lambda: self._finished(since), "no sample of all nodes")
        self._until(lambda: holding(self.journal.records()) >= self._machines, "not all nodes hold samples")
        first = time.time()
        for name in self._names:
            self._cluster.vanish(name)
        killed = time.time()
        time.sleep(self._setup.away_s)
        back = time.time()
        for name in self._names:
            self._cluster.add(name)
        self._until(lambda: self._finished(back), "no sample of the nodes that returned")
        times = Times(killed=killed, back=back, end=time.time())
        made = round_of(self.journal.records(), times, killed - first, self._machines)
        print(f"round {number} of {self._setup.rounds}: {made}", file=sys.stderr, flush=True)
        return made

    def _finished(self, since: float) -> bool:
        """Whether each node has finished a sample since then."""
        done = {node_of(record.event.worker) for wall, record in self.journal.records()
                if wall > since and isinstance(record.event, Accepted)}  # fmt: skip
        return done >= self._machines

    def _until(self, is_so: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + START_S
        while not is_so():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{problem} in {START_S:g} s, or the run has ended")
            self._cluster.revive()
            time.sleep(POLL_S)


def machine(name: str) -> str:
    """The run's name of a Ray node."""
    return f"ray-{name}"


def node_of(worker: WorkerId) -> str:
    """The name of the worker's node; one that returns before Ray has given its predecessor up has a number too."""
    return "-".join(worker.partition("/")[0].rpartition(".")[0].split("-")[:2])


def holding(records: Sequence[tuple[float, Record]]) -> set[str]:
    """Nodes that hold samples at the end of the journal."""
    holders: dict[RequestId, str] = {}
    for _, record in records:
        match record.event:
            case Leased(request=request, worker=worker):
                holders[request] = node_of(worker)
            case Released(request=request) | Accepted(request=request) | Dropped(request=request):
                holders.pop(request, None)
    return set(holders.values())


def round_of(records: Sequence[tuple[float, Record]], times: Times, kills_s: float, nodes: set[str]) -> Round:
    """Costs of a loss, from the journal."""
    holders: dict[RequestId, str] = {}
    freed: list[tuple[float, int]] = []
    accepted: list[tuple[float, str]] = []
    steps_away = 0
    for wall, record in records:
        match record.event:
            case Leased(request=request, worker=worker):
                holders[request] = node_of(worker)
            case Released(request=request, reason=reason, redone=redone):
                is_lost = reason in (ReleaseReason.LOST, ReleaseReason.SILENT)
                if is_lost and holders.get(request) in nodes and times.killed <= wall <= times.end:
                    freed.append((wall, redone))
            case Accepted(worker=worker) if wall > times.killed:
                accepted.append((wall, node_of(worker)))
            case StepCommitted() if times.killed <= wall <= times.back:
                steps_away += 1
    firsts = [min(wall for wall, name in accepted if name == node and wall > times.back) for node in nodes]
    return Round(
        kills_s=kills_s,
        lost=len(freed),
        freed_s=max((wall for wall, _ in freed), default=times.killed) - times.killed,
        redone=sum(redone for _, redone in freed),
        next_sample_s=min(wall for wall, _ in accepted) - times.killed,
        steps_away=steps_away,
        back_s=max(firsts) - times.back,
    )


def figures_of(rounds: Sequence[Round]) -> dict[str, Figure]:
    values: dict[str, tuple[Sequence[float], str]] = {
        "kills_s": ([one.kills_s for one in rounds], "s from the first to the last kill"),
        "lost": ([one.lost for one in rounds], "samples held by the lost nodes"),
        "freed_s": ([one.freed_s for one in rounds], "s until they are free for others"),
        "redone": ([one.redone for one in rounds], "denoising steps redone"),
        "next_sample_s": ([one.next_sample_s for one in rounds], "s until the next sample is accepted"),
        "steps_away": ([one.steps_away for one in rounds], "optimizer steps without spot nodes"),
        "back_s": ([one.back_s for one in rounds], "s from the start of the nodes' Ray to a sample of each"),
    }
    return {name: Figure.median(found, unit) for name, (found, unit) in values.items()}


@contextmanager
def _cluster(setup: Setup) -> Iterator[LocalRayCluster]:
    with ExitStack() as stack:
        network = stack.enter_context(namespaces()) if setup.network else None
        cluster = LocalRayCluster(is_quick=False, network=network)
        stack.callback(cluster.close)
        yield cluster


@contextmanager
def _running(folder: Path, cluster: LocalRayCluster) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "spotlight.surface.cli.main", "train", RECIPE]
    command += [part for setting in (*SETTINGS, f"cluster.address={cluster.address}") for part in ("--set", setting)]
    environment = os.environ | cluster.environment | {"OMP_NUM_THREADS": "1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment)
    try:
        yield process
    except BaseException:
        sys.stderr.write((folder / "log").read_text(errors="replace")[-3000:])
        raise
    finally:
        # The second signal stops the run in the middle of its iteration.
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(1.0)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
