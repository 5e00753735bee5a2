"""A run's journal and its folds: state, ledger, planner, meter.

Invariant: an event is in the journal before anything else sees it. So after a death at any point, `reopen` gives the
same folds that the dead process had (tests/storm checks it at every restart).
"""

import asyncio
from collections.abc import Callable

from spotlight import __version__
from spotlight.compute.data.prompts import RunPrompts, run_prompts
from spotlight.compute.models.catalogue import ModelFacts, facts_of
from spotlight.compute.rewards.config import Term
from spotlight.config import RunConfig
from spotlight.control.explore.planner import Planner
from spotlight.control.ledger import Ledger
from spotlight.control.market.cost import CostMeter
from spotlight.control.run_state import RunState
from spotlight.core.clock import Clock
from spotlight.core.errors import InputError, NothingToDo
from spotlight.core.events import (
    BULK,
    SCHEMA,
    AnyEvent,
    IterationDone,
    Leased,
    Record,
    RunResumed,
    RunStarted,
    RunStopped,
)
from spotlight.core.journal import Disk, Journal, JournalUnwritable, read
from spotlight.core.types import WorkerId
from spotlight.core.work import RequestId
from spotlight.folder import RunFolder, config_digest

Observer = Callable[[Record], None]
Projection = Callable[[], bytes]
"""Returns an observer's state as bytes."""


class RunLog:
    """Journal and folds of one life of a run; use `begin` or `reopen`."""

    def __init__(
        self, config: RunConfig, folder: RunFolder, journal: Journal, clock: Clock, prompts: RunPrompts
    ) -> None:
        self.config = config
        self.folder = folder
        self.clock = clock
        self.prompts = prompts
        self.facts: ModelFacts = facts_of(config.model.name)
        self.size = self.facts.size(config.data.size)
        """Size of the run's images."""
        self.rewards: tuple[Term, ...] = config.rewards(self.facts)
        self.observers: list[Observer] = []
        """Called with every record."""
        self.watchers: list[Observer] = []
        """Called with every record except those of `BULK`, which are most."""
        self.projections: dict[str, Projection] = {}
        """Snapshot after every iteration, by name, so that readers need not start at the first record."""
        self.state = RunState()
        self.ledger = Ledger(self.emit)
        self.holders: dict[tuple[RequestId, int], WorkerId] = {}
        """Worker of each attempt at a sample that was unfinished when the run was reopened."""
        self._unwritable: JournalUnwritable | None = None
        self._meter: CostMeter | None = None
        self.planner = Planner(config.explore)
        self._journal = journal

    @classmethod
    def begin(
        cls, config: RunConfig, recipe: str, folder: RunFolder, clock: Clock, disk: Disk | None = None
    ) -> "RunLog":
        """Start a new run and write its first record."""
        settings, prompts = config.model_dump(mode="json"), run_prompts(config.data, facts_of(config.model.name).world)
        folder.write_prompts(prompts)
        folder.write_config(settings)
        journal = Journal.create(folder.journal, clock.now, config.output.journal, disk)
        run_log = cls(config, folder, journal, clock, prompts)
        run_log.emit(
            RunStarted(
                schema=SCHEMA,
                run_seed=config.seed,
                recipe=recipe,
                config_digest=config_digest(settings),
                code=__version__,
                base_digest=run_log.facts.digest,
                wall=clock.wall(),
            )
        )
        return run_log

    @classmethod
    def reopen(cls, config: RunConfig, folder: RunFolder, clock: Clock, disk: Disk | None = None) -> "RunLog":
        """Reopen a run from its journal; leases stay until `Ledger.interrupt`."""
        prompts = folder.read_prompts()
        journal = Journal.open(folder.journal, clock.now, config.output.journal, disk)
        run_log = cls(config, folder, journal, clock, prompts)
        try:
            run_log._restore()
        except BaseException:
            run_log.close()
            raise
        return run_log

    def _restore(self) -> None:
        records = list(read(self.folder.journal))
        for record in records:
            self._fold(record)
        self.ledger = Ledger.replay((record.event for record in records), self.emit)
        leases = [record.event for record in records if isinstance(record.event, Leased)]
        self.holders = {
            (lease.request, lease.attempt): lease.worker
            for lease in leases
            if self.ledger.resume_limit(lease.request) is not None
        }
        if self.state.started is None:
            raise InputError(
                f"the journal of {self.folder.name} has no first record, so the run never began; delete its folder and "
                "start it again."
            )
        if self.state.started.base_digest != self.facts.digest:
            raise InputError(
                f"the run {self.folder.name} began with base weights {self.state.started.base_digest}, but "
                f"{self.config.model.name} is now {self.facts.digest}, and adapters fit their own base only; put the "
                "first file back, or start a new run."
            )
        if self.state.finished and self.state.iterations_done >= self.config.iterations:
            raise nothing_left(self.folder, self.config)
        self.emit(RunResumed(attempt=self.state.attempts + 1, wall=self.clock.wall()))

    def emit(self, event: AnyEvent) -> None:
        """Append the event; after one that could not be written only the end of the run is recorded.

        Decisions that rest on the lost event must not follow it: the run resumes from the record before.
        """
        if self._unwritable is not None and not isinstance(event, RunStopped):
            raise self._unwritable
        try:
            record = self._journal.append(event)
        except JournalUnwritable as error:
            self._unwritable = error
            raise
        if type(event) in BULK and self._meter is None and not self.observers:
            # Nothing observes it, as in a long simulation, where nearly all records are of this kind.
            return
        self._fold(record)
        if self.projections and isinstance(event, IterationDone):
            self._journal.snapshot({name: projection() for name, projection in self.projections.items()})

    @property
    def meter(self) -> CostMeter:
        """Added up from the journal at the first access, then kept up to date."""
        if self._meter is None:
            self._journal.sync()
            self._meter = CostMeter.replay(read(self.folder.journal))
        return self._meter

    @property
    def next_seq(self) -> int:
        return self._journal.next_seq

    def run_time(self, at: float | None = None) -> float:
        """Seconds since the run first started, now or at a reading of the clock `at`."""
        now = self._journal.now()
        return now if at is None else now - (self.clock.now() - at)

    async def sync_forever(self) -> None:
        """Sync the journal in time even if no durable event is appended."""
        while True:
            await asyncio.sleep(1.0)
            self._journal.tick()

    def close(self) -> None:
        self._journal.close()

    def _fold(self, record: Record) -> None:
        # A meter that a watcher first accesses now is read from the journal, which has this record already.
        event, meter = record.event, self._meter
        if type(event) not in BULK:
            self.state.apply(event)
            self.planner.apply(event)
            for watch in self.watchers:
                watch(record)
        if meter is not None:
            meter.apply(record)
        for observe in self.observers:
            observe(record)


def nothing_left(folder: RunFolder, config: RunConfig) -> NothingToDo:
    return NothingToDo(
        f"the run {folder.name} has done its {config.iterations} iterations, so nothing is left to do; look at its "
        "report, or resume it with --set iterations=N."
    )
