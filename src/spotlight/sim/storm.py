"""Fault storms: the real control plane, simulated machines, and faults drawn from a seed.

    python -m spotlight.sim.storm --seeds 300 --start 0

Each seed is a small run with its own recipe, machines and mix of faults. Faults come in gusts (safety); in the time
between and after them, which is bounded, the run must finish (liveness). In deterministic mode its weights must equal
those of an undisturbed run. A seed's trace depends on the seed alone.
"""

import argparse
import asyncio
import gc
import sys
import tempfile
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import track

from spotlight.control.ledger.findings import Bounds
from spotlight.control.ledger.states import EDGES, SampleState
from spotlight.control.pipeline.gap import groups_by_update
from spotlight.control.run_state import RunState
from spotlight.control.setbacks import Setbacks
from spotlight.core.errors import NothingToDo, SpotlightError, Stopped
from spotlight.core.events import AnyEvent, Issued, Record
from spotlight.core.journal import read
from spotlight.core.segments import list_segments
from spotlight.core.work import RequestId, Work
from spotlight.folder import RunFolder
from spotlight.sim.controller import Controller, Ending, PowerCut
from spotlight.sim.crash_points import Broken
from spotlight.sim.disk_faults import FaultyDisk, damage_files
from spotlight.sim.faults import KINDS, MACHINES, Fault, MachineFaults, Storm, Undisturbed
from spotlight.sim.invariants import Edge, Invariants
from spotlight.sim.message_trace import MessageTrace
from spotlight.sim.setting import Setting, draw_setting
from spotlight.sim.sim_world import SimWorld
from spotlight.sim.storage import SimStorage
from spotlight.sim.virtual_loop import VirtualClock, run_virtually
from spotlight.wiring import Wired

UNUSED: frozenset[Edge] = frozenset({(SampleState.ACCEPTED, SampleState.DROPPED)})
"""In the diagram, but the product never drops an accepted sample."""


@dataclass
class SeedOutcome:
    """Outcome of one seed."""

    seed: int
    events: int
    seconds: float
    """Virtual time."""
    restarts: int
    crews: int
    theta: str
    trace: str
    """Hash of all events."""
    digests: tuple[tuple[int, str], ...] = ()
    """Iteration of each update, and weights after it."""
    altered: int | None = None
    """First iteration that trains without a sample with which twenty workers in a row died: from there the promise of
    equal weights ends. None: it holds throughout."""
    fired: Counter[str] = field(default_factory=Counter)
    edges: Counter[Edge] = field(default_factory=Counter)

    def digests_before(self, iteration: int | None) -> list[str]:
        """Weights after each update of the iterations before this one."""
        return [digest for trained, digest in self.digests if iteration is None or trained < iteration]


@dataclass
class StormTally:
    """The sum of outcomes."""

    seeds: int = 0
    events: int = 0
    seconds: float = 0.0
    restarts: int = 0
    crews: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    edges: Counter[Edge] = field(default_factory=Counter)

    def add(self, outcome: SeedOutcome) -> None:
        self.seeds += 1
        self.events += outcome.events
        self.seconds += outcome.seconds
        self.restarts += outcome.restarts
        self.crews += outcome.crews
        self.fired += outcome.fired
        self.edges += outcome.edges

    def untried(self) -> list[str]:
        """Kinds of faults that never happened, and edges that no sample took."""
        drawn = [(start, end) for start, ends in EDGES.items() for end in sorted(ends)]
        edges = [f"{start.value} -> {end.value}" for start, end in drawn if not self._took(start, end)]
        return [kind.value for kind in KINDS if not self.fired[kind]] + edges

    def sentences(self) -> list[str]:
        faults = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.fired.items()))
        edges = ", ".join(f"{a.value} -> {b.value}: {count}" for (a, b), count in sorted(self.edges.items()))
        return [
            f"{self.seeds} seeds held: {self.events} events in {self.seconds / 3600:.1f} virtual hours, the controller "
            f"came back {self.restarts} times, nodes reported {self.crews} crews.",
            f"Faults: {faults}.",
            f"Edges: {edges}.",
        ]

    def _took(self, start: SampleState, end: SampleState) -> bool:
        return bool(self.edges[start, end]) or (start, end) in UNUSED


ENOUGH_SEEDS = 60
"""Number of seeds from which every kind of fault and every edge of a sample's states must occur."""
LIVENESS_S = 900.0
"""Bound of the virtual time without faults, beside the time that one worker alone needs for all rollouts."""
NOTHING_TO_TRAIN = ("every sample of update", "in iterations")
"""Beginnings of the errors that end a run whose samples cannot be made or scored."""
RESTART_S = 1.0
"""Time until a run without a controller is resumed."""


class StormFailed(AssertionError):
    """A seed broke an invariant; the message has the invariant, the event and the events before."""


class StormRun:
    """The run of one seed, over all lives of its controller."""

    def __init__(self, setting: Setting, storm: Storm, folder: Path) -> None:
        config = setting.config
        bounds = Bounds.promised(config.pipeline, config.cluster.commit_every, config.deterministic)
        self._loop = asyncio.get_running_loop()
        self._setting = setting
        self._storm = storm
        self._folder = RunFolder(folder)
        self.trace = MessageTrace()
        self._setbacks: list[Setbacks] = []
        """Of each life of the controller."""
        self.storage = SimStorage()
        self.storage.is_full = storm.is_full
        rewards = config.reward.rewards("simulated")
        exact, machines = config.deterministic, setting.machines
        self.world = SimWorld(storm, self.storage, self.trace, exact, machines, rewards=rewards)
        self.invariants = Invariants(self.world, bounds)
        self.restarts = 0
        self._awaited: tuple[type[AnyEvent] | tuple[()], asyncio.Future[None]] = (), self._loop.create_future()
        """Kind of record at which the next gust begins, and a future that it settles."""

    async def run(self) -> SeedOutcome:
        machine_faults = MachineFaults(self._storm, self.world)
        tasks = [asyncio.create_task(machine_faults.inject(kind)) for kind in MACHINES]
        tasks.append(asyncio.create_task(self._blow()))
        liveness_s = LIVENESS_S + self._setting.alone_s
        bound = sum(gust.seconds for gust in self._storm.gusts) + liveness_s
        try:
            await asyncio.wait_for(self._lives(), bound)
        except TimeoutError:
            raise Broken(f"the run did not finish within {bound:.0f} s, {liveness_s:.0f} s without faults") from None
        except SpotlightError as error:
            # Samples fail by identity: if an update or two iterations have no others, no run of this seed can train.
            if not (str(error).startswith(NOTHING_TO_TRAIN) and self._cannot_train()):
                raise
        else:
            self.invariants.finish()
        finally:
            for task in tasks:
                task.cancel()
        return SeedOutcome(
            seed=self._setting.seed,
            events=self.world.events,
            seconds=self._loop.time(),
            restarts=self.restarts,
            crews=self.world.crews,
            theta=self.invariants.theta,
            trace=self.trace.digest(),
            digests=tuple((step.iteration, step.digest) for step in self.invariants.steps),
            altered=self._first_altered(),
            fired=self._storm.fired,
            edges=self.invariants.edges + Counter({(SampleState.LEASED, SampleState.DROPPED): self.world.discards}),
        )

    def _first_altered(self) -> int | None:
        """First iteration whose groups, baselines or choice of seeds lack a sample that twenty workers died with."""
        lost = [request.split("/") for setbacks in self._setbacks for request in setbacks.worn_out]
        return min((int(iteration) for work, iteration, *_ in lost if work != Work.EVALUATION), default=None)

    def _cannot_train(self) -> bool:
        """Whether rollouts that fail by identity leave an update without samples, or two iterations in a row without a
        group of two scores. Rollouts that were lost for another reason count as if they were there."""
        config = self._setting.config
        blind: dict[int, bool] = {}
        for iteration, groups in self._rollouts().items():
            scores = [sum(not self._storm.has_no_reward(request) for request in made) for made in groups]
            blind[iteration] = max(scores) < 2
            updates = groups_by_update(groups, config.train.updates_per_iteration, config.seed, iteration)
            if any(not any(update) for update in updates):
                return True
        return any(blind[iteration] and blind.get(iteration - 1, False) for iteration in blind)

    def _rollouts(self) -> dict[int, list[list[RequestId]]]:
        """Rollouts that workers can make, by iteration and group, of iterations that are issued completely."""
        issued: dict[int, dict[int, list[RequestId]]] = {}
        for event in (record.event for record in read(self._folder.journal)):
            for request in event.requests if isinstance(event, Issued) else ():
                if request.work is Work.ROLLOUT:
                    made = issued.setdefault(request.iteration, {}).setdefault(request.group, [])
                    made += [] if self._storm.is_poisoned(request.id) else [request.id]
        count = self._setting.config.rollout.prompts
        return {
            iteration: [groups[group] for group in sorted(groups)]
            for iteration, groups in issued.items()
            if len(groups) == count
        }

    async def _lives(self) -> None:
        """Run one controller after another until one finishes the run."""
        while await self._live() is not Ending.FINISHED:
            self.restarts += 1
            await asyncio.sleep(RESTART_S)
            damaged = damage_files(self._storm, self.storage, self._storm.stream("spoil"))
            self.invariants.damaged.update(damaged)
            for name in damaged:
                self.world.note(f"{name} is damaged")

    async def _live(self) -> Ending:
        disk = FaultyDisk(self._storm, is_new=not self._folder.config.exists(), unplug=self.world.unplug)
        broken: asyncio.Future[None] = self._loop.create_future()

        def check() -> None:
            try:
                self.invariants.check()
            except Broken as error:
                if not broken.done():
                    broken.set_exception(error)

        def ready(wired: Wired) -> None:
            self.invariants.watch(controller.run_log, wired.hub)
            self._setbacks.append(wired.hub.dispatcher.setbacks)
            controller.run_log.observers.append(note)
            controller.run_log.observers.append(disk.record_written)
            self.world.checked = check

        def note(record: Record) -> None:
            kind, occurred = self._awaited
            if isinstance(record.event, kind) and not occurred.done():
                occurred.set_result(None)
            self.trace.add(self.world.now, f"   [{record.seq}] {type(record.event).__name__}")

        try:
            controller = Controller(
                self._setting.config, self._folder, self.world, VirtualClock(self._loop), disk.disk()
            )
            ending = await _run_unless(broken, controller.live(self._setting.nodes, ready))
            self.invariants.compare(controller.run_log)
            if controller.reason and not self._disk_was_full():
                raise Broken(f"the run stopped, though its disk was never full: {controller.reason}")
        except PowerCut:
            ending = Ending.DIED
        except (Stopped, NothingToDo):
            is_over = RunState.replay(record.event for record in read(self._folder.journal)).finished
            ending = Ending.FINISHED if is_over else Ending.STOPPED
        self.world.note(f"the controller {ending.value}")
        self._tear(disk.torn)
        return ending

    def _disk_was_full(self) -> bool:
        return bool(self._storm.fired[Fault.JOURNAL_FULL] or self._storm.fired[Fault.PAYLOAD_FULL])

    def _tear(self, torn: bytes) -> None:
        if torn:
            newest = list_segments(self._folder.journal)[-1]
            with newest.open("ab") as file:
                file.write(torn)

    async def _blow(self) -> None:
        """Let faults happen in gusts."""
        for gust in self._storm.gusts:
            await self._recorded(gust.after)
            self._storm.is_calm = False
            await asyncio.sleep(gust.seconds)
            self._storm.is_calm = True
            self.world.restore_speed()
            self.world.note("the gust is over")

    async def _recorded(self, kind: type[AnyEvent] | None) -> None:
        """Wait for a record of this kind."""
        if kind is not None:
            self._awaited = kind, self._loop.create_future()
            await self._awaited[1]


async def _run_unless(broken: "asyncio.Future[None]", life: Coroutine[None, None, Ending]) -> Ending:
    """The ending of the life; a broken invariant cancels it at once."""
    task = asyncio.create_task(life)
    broken.add_done_callback(lambda _: task.cancel())
    try:
        return await task
    except asyncio.CancelledError:
        if not broken.done():
            task.cancel()
            raise
        broken.result()
        raise


def run_seed(seed: int, logs: Path | None = None) -> SeedOutcome:
    """Run a seed and, in deterministic mode, its undisturbed twin; raise StormFailed if one breaks or they differ."""
    setting = draw_setting(seed)
    stormy = _run_storm(setting, Storm(seed, setting.tempo), logs)
    if setting.config.deterministic:
        calm = _run_storm(setting, Undisturbed(seed, setting.tempo), logs)
        found, wanted = (each.digests_before(stormy.altered) for each in (stormy, calm))
        if found != wanted:
            raise StormFailed(
                f"seed {seed}: the run has weights {found[-1:]} after {len(found)} updates, but undisturbed it has "
                f"{wanted[-1:]} after {len(wanted)}, so something was lost, doubled or reordered."
            )
    return stormy


def _run_storm(setting: Setting, storm: Storm, logs: Path | None) -> SeedOutcome:
    runs: list[StormRun] = []

    async def main(folder: Path) -> SeedOutcome:
        runs.append(StormRun(setting, storm, folder))
        return await runs[0].run()

    with _scratch() as folder:
        try:
            return run_virtually(main(folder))
        except Exception as error:
            trace = runs[0].trace
            path = _log(setting.seed, trace, error, logs)
            raise StormFailed(
                f"seed {setting.seed}, event {len(trace.lines)}: {type(error).__name__}: {error}\n"
                f"faults: {dict(storm.fired)}\nthe last events ({path} has all):\n{trace.last()}"
            ) from error


@contextmanager
def _scratch() -> Iterator[Path]:
    """A temporary folder, in memory if /dev/shm exists."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="storm-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def _log(seed: int, trace: MessageTrace, error: Exception, logs: Path | None) -> Path:
    path = (logs or Path(tempfile.gettempdir())) / f"storm-{seed}.log"
    path.write_text("\n".join([*trace.lines, f"{type(error).__name__}: {error}", ""]))
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line: 0 if every seed held and every kind and edge was tried, 1 otherwise."""
    parser = argparse.ArgumentParser(description="Runs fault storms over the real control plane in virtual time.")
    parser.add_argument("--seeds", type=int, default=300, help="number of seeds")
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--logs", type=Path, help="folder for storm-SEED.log of failures; default: temporary folder")
    options = parser.parse_args(arguments)
    console, tally, failed = Console(highlight=False), StormTally(), []
    for seed in track(range(options.start, options.start + options.seeds), "storms", console=console):
        if seed % 20 == 0:
            # A simulation freezes what exists, the garbage of the one before included.
            gc.collect()
        try:
            tally.add(run_seed(seed, options.logs))
        except StormFailed as failure:
            failed.append(seed)
            console.print(str(failure), markup=False)
    for line in tally.sentences():
        console.print(line, markup=False)
    untried = tally.untried() if options.seeds >= ENOUGH_SEEDS else []
    if untried:
        console.print(f"never tried, so these storms prove nothing about it: {', '.join(untried)}", markup=False)
    if failed:
        console.print(f"FAILED: seeds {failed}", markup=False)
    return 1 if failed or untried else 0


if __name__ == "__main__":
    sys.exit(main())
