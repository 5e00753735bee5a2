"""Fault storms: the real control plane, simulated machines, and faults drawn from a seed.

    python -m spotlight.sim.storm --seeds 300 --start 0

Each seed is a small run with its own recipe, machines and mix of faults. Faults stop after a while (safety), and then
the run must finish within a bound (liveness). In deterministic mode its weights must be those of an undisturbed run.
A seed's trace depends on the seed alone.
"""

import argparse
import asyncio
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
from spotlight.control.run_state import RunState
from spotlight.core.errors import NothingToDo, Stopped
from spotlight.core.events import Record
from spotlight.core.journal import read
from spotlight.core.segments import list_segments
from spotlight.folder import RunFolder
from spotlight.sim.controller import Controller, Ending, PowerCut
from spotlight.sim.faults import KINDS, MACHINES, Fault, MachineFaults, Storm, StormyDisk, Undisturbed, spoil
from spotlight.sim.invariants import Broken, Edge, Invariants
from spotlight.sim.message_trace import MessageTrace
from spotlight.sim.setting import Setting, draw_setting
from spotlight.sim.sim_world import SimWorld
from spotlight.sim.storage import SimStorage
from spotlight.sim.virtual_loop import VirtualClock, run_virtually
from spotlight.wiring import Wired

UNUSED: frozenset[Edge] = frozenset({(SampleState.ACCEPTED, SampleState.DROPPED)})
"""Drawn, but nothing in the product gives up a sample that it has."""


@dataclass
class SeedOutcome:
    """What one seed was."""

    seed: int
    events: int
    seconds: float
    """Of virtual time."""
    restarts: int
    crews: int
    theta: str
    trace: str
    """Hash of everything that happened."""
    fired: Counter[str] = field(default_factory=Counter)
    edges: Counter[Edge] = field(default_factory=Counter)


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
        """Kinds of faults that never struck, and edges that no sample took."""
        drawn = [(start, end) for start, ends in EDGES.items() for end in sorted(ends)]
        edges = [f"{start.value} -> {end.value}" for start, end in drawn if not self._took(start, end)]
        return [kind.value for kind in KINDS if not self.fired[kind]] + edges

    def sentences(self) -> list[str]:
        faults = ", ".join(f"{count} x {kind}" for kind, count in sorted(self.fired.items()))
        edges = ", ".join(f"{a.value} -> {b.value}: {count}" for (a, b), count in sorted(self.edges.items()))
        return [
            f"{self.seeds} seeds held: {self.events} events in {self.seconds / 3600:.1f} virtual hours, the controller "
            f"came back {self.restarts} times, nodes told of {self.crews} crews.",
            f"Faults: {faults}.",
            f"Edges: {edges}.",
        ]

    def _took(self, start: SampleState, end: SampleState) -> bool:
        return bool(self.edges[start, end]) or (start, end) in UNUSED


ENOUGH_SEEDS = 60
"""From so many on, every kind of fault and every edge of a sample's states must have been tried."""
LIVENESS_S = 900.0
"""After the last fault, in virtual seconds: ten times what the largest undisturbed run takes."""
RESTART_S = 1.0
"""Until somebody resumes a run whose controller is gone."""


class StormFailed(AssertionError):
    """A seed broke an invariant; the message says which, where, and what happened before."""


class Tempest:
    """One seed's run from its first life to its end."""

    def __init__(self, setting: Setting, storm: Storm, folder: Path) -> None:
        config = setting.config
        bounds = Bounds.promised(config.pipeline, config.cluster.commit_every, config.deterministic)
        self._loop = asyncio.get_running_loop()
        self._setting = setting
        self._storm = storm
        self._folder = RunFolder(folder)
        self.trace = MessageTrace()
        self.storage = SimStorage()
        self.storage.is_full = lambda name: storm.happens(Fault.PAYLOAD_FULL, 0.02)
        self.world = SimWorld(storm, self.storage, self.trace, config.deterministic, config.cluster.elastic)
        self.invariants = Invariants(self.world, bounds)
        self.restarts = 0

    async def run(self) -> SeedOutcome:
        weather = MachineFaults(self._storm, self.world)
        tasks = [asyncio.create_task(weather.rage(kind)) for kind in MACHINES]
        tasks.append(asyncio.create_task(self._calm_down()))
        bound = self._storm.safety_s + LIVENESS_S
        try:
            await asyncio.wait_for(self._lives(), bound)
        except TimeoutError:
            raise Broken(f"the run did not finish within {bound:.0f} s, {LIVENESS_S:.0f} s after the faults") from None
        finally:
            for task in tasks:
                task.cancel()
        self.invariants.finish()
        return SeedOutcome(
            seed=self._setting.seed,
            events=self.world.events,
            seconds=self._loop.time(),
            restarts=self.restarts,
            crews=self.world.crews,
            theta=self.invariants.theta,
            trace=self.trace.digest(),
            fired=self._storm.fired,
            edges=self.invariants.edges + Counter({(SampleState.LEASED, SampleState.DROPPED): self.world.discards}),
        )

    async def _lives(self) -> None:
        """Life after life of the controller, until one finishes the run."""
        while await self._live() is not Ending.FINISHED:
            self.restarts += 1
            await asyncio.sleep(RESTART_S)
            spoilt = spoil(self._storm, self.storage, self._storm.stream("spoil"))
            self.invariants.damaged.update(spoilt)
            for name in spoilt:
                self.world.note(f"{name} is spoilt")

    async def _live(self) -> Ending:
        disk = StormyDisk(self._storm, is_new=not self._folder.config.exists(), unplug=self.world.unplug)
        broken: asyncio.Future[None] = self._loop.create_future()

        def check() -> None:
            try:
                self.invariants.check()
            except Broken as error:
                if not broken.done():
                    broken.set_exception(error)

        def ready(wired: Wired) -> None:
            self.invariants.watch(controller.run_log, wired.hub)
            controller.run_log.observers.append(note)
            controller.run_log.observers.append(disk.record_written)
            self.world.checked = check

        def note(record: Record) -> None:
            self.trace.add(self.world.now, f"   [{record.seq}] {type(record.event).__name__}")

        try:
            controller = Controller(
                self._setting.config, self._folder, self.world, VirtualClock(self._loop), disk.disk()
            )
            ending = await _unless(broken, controller.live(self._setting.nodes, ready))
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

    async def _calm_down(self) -> None:
        await asyncio.sleep(self._storm.safety_s)
        self._storm.is_over = True
        self.world.heal()
        self.world.note("the storm is over")


async def _unless(broken: "asyncio.Future[None]", life: Coroutine[None, None, Ending]) -> Ending:
    """How the life ends; it is ended at once by an invariant that breaks."""
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


def weather_one(seed: int, logs: Path | None = None) -> SeedOutcome:
    """One seed, and its undisturbed twin where weights must be equal; raises StormFailed."""
    setting = draw_setting(seed)
    stormy = _survive(setting, Storm(seed, setting.tempo), logs)
    if setting.config.deterministic:
        calm = _survive(setting, Undisturbed(seed, setting.tempo), logs)
        if calm.theta != stormy.theta:
            raise StormFailed(
                f"seed {seed}: the run ends with weights {stormy.theta}, but undisturbed it ends with {calm.theta}, "
                "so that something was lost, doubled or reordered."
            )
    return stormy


def _survive(setting: Setting, storm: Storm, logs: Path | None) -> SeedOutcome:
    tempests: list[Tempest] = []

    async def main(folder: Path) -> SeedOutcome:
        tempests.append(Tempest(setting, storm, folder))
        return await tempests[0].run()

    with _scratch() as folder:
        try:
            return run_virtually(main(folder))
        except Exception as error:
            trace = tempests[0].trace
            path = _log(setting.seed, trace, error, logs)
            raise StormFailed(
                f"seed {setting.seed}, event {len(trace.lines)}: {type(error).__name__}: {error}\n"
                f"faults: {dict(storm.fired)}\nthe last events ({path} has all):\n{trace.last()}"
            ) from error


@contextmanager
def _scratch() -> Iterator[Path]:
    """In memory where there is such a place."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="storm-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def _log(seed: int, trace: MessageTrace, error: Exception, logs: Path | None) -> Path:
    path = (logs or Path(tempfile.gettempdir())) / f"storm-{seed}.log"
    path.write_text("\n".join([*trace.lines, f"{type(error).__name__}: {error}", ""]))
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """The command: 0 if every seed held and everything was tried, 1 otherwise."""
    parser = argparse.ArgumentParser(description="Runs fault storms over the real control plane in virtual time.")
    parser.add_argument("--seeds", type=int, default=300, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--logs", type=Path, help="where storm-SEED.log of a failure goes; the temporary folder")
    options = parser.parse_args(arguments)
    console, tally, failed = Console(highlight=False), StormTally(), []
    for seed in track(range(options.start, options.start + options.seeds), "storms", console=console):
        try:
            tally.add(weather_one(seed, options.logs))
        except StormFailed as failure:
            failed.append(seed)
            console.print(str(failure), markup=False)
    for line in tally.sentences():
        console.print(line, markup=False)
    untried = tally.untried() if options.seeds >= ENOUGH_SEEDS else []
    if untried:
        console.print(f"never tried, so that these storms prove nothing about it: {', '.join(untried)}", markup=False)
    if failed:
        console.print(f"FAILED: seeds {failed}", markup=False)
    return 1 if failed or untried else 0


if __name__ == "__main__":
    sys.exit(main())
