"""Rollouts ahead of the weights: while iteration k trains, the first groups of k+1 are begun with version k.

    begin(k+1): previews are in --> seeds are chosen --> a group whenever the slots that roll out have nothing to do,
                be it that the last rollouts of k are still drawn by others
    close(k+1): training is over; where seeds were not chosen before, nothing is stale, unless the number is fixed
    k+1 is within reach: no more; `Rollouts.issue` draws the rest with it

Who decides is `control/pipeline/staleness.py`; here it is asked whenever something changes. What was admitted is in the
journal, so that after a restart nothing is decided twice (tests/journeys/test_asynchrony.py).
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from spotlight.control.pipeline.config import PipelineConfig
from spotlight.control.pipeline.gap import turns
from spotlight.control.pipeline.staleness import Admission
from spotlight.control.run_state import RunState
from spotlight.controller.exploration import Explorer
from spotlight.controller.hub import Hub
from spotlight.controller.rollouts import Rollouts
from spotlight.core.types import Version
from spotlight.core.work import WeightsId


class Ahead(Protocol):
    """What the loop sees; without asynchrony it is `NoAsynchrony`."""

    def begin(self, iteration: int) -> None: ...

    def close(self, iteration: int) -> None: ...


class NoAsynchrony:
    """Every group is drawn with the newest weights."""

    def begin(self, iteration: int) -> None:
        pass

    def close(self, iteration: int) -> None:
        pass


@dataclass(frozen=True)
class Lead:
    """How far rollouts may be ahead of training."""

    groups: int
    """Of an iteration."""
    updates: int
    run_seed: int
    iterations: int
    pipeline: PipelineConfig
    is_fixed: bool
    """Whether who is here, and when, must not matter to how many groups are stale."""

    def admission(self, iteration: int, rollouts: Rollouts) -> Admission:
        """Of what the journal shows not to be issued yet."""
        needed = turns(self.groups, self.updates, self.run_seed, iteration)
        order = sorted(needed, key=needed.__getitem__)
        return Admission(order, self.pipeline.stale_share, self.is_fixed, rollouts.issued_groups(iteration))


class Asynchrony:
    """Admits groups of the next iteration while one is trained."""

    def __init__(self, hub: Hub, rollouts: Rollouts, explorer: Explorer, state: RunState, lead: Lead) -> None:
        self._hub = hub
        self._rollouts = rollouts
        self._explorer = explorer
        self._state = state
        self._lead = lead
        self._admission: Admission | None = None
        """None until the seeds of the next iteration are chosen."""
        self._task: asyncio.Task[None] | None = None

    def begin(self, iteration: int) -> None:
        """From now on, as soon as its previews are in."""
        self._admission = None
        if iteration < self._lead.iterations:
            self._task = asyncio.create_task(self._guarded(iteration))

    def close(self, iteration: int) -> None:
        """Training is over and seeds are chosen: go on where that was so before, or all at once, or not at all."""
        if iteration >= self._lead.iterations or self._admission is not None:
            return
        if self._lead.is_fixed:
            self._admission = self._lead.admission(iteration, self._rollouts)
            self._admit(iteration, self._admission)
        if self._task is not None:
            self._task.cancel()

    async def _guarded(self, iteration: int) -> None:
        """What fails here fails for whoever waits for anything."""
        try:
            await self._go_ahead(iteration)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._hub.fail(error)

    async def _go_ahead(self, iteration: int) -> None:
        if self._lead.is_fixed:
            await self._rollouts.finished(iteration - 1)
        await self._hub.until(lambda: self._explorer.is_in(iteration))
        await self._explorer.close(iteration)
        admission = self._admission = self._lead.admission(iteration, self._rollouts)
        while not self._is_over(iteration):
            self._admit(iteration, admission)
            await self._hub.until(lambda: self._is_over(iteration) or (admission.has_room and self._is_idle(iteration)))
        admission.end()

    def _admit(self, iteration: int, admission: Admission) -> None:
        groups = admission.admit(self._is_idle(iteration))
        if groups:
            self._rollouts.issue_ahead(iteration, groups, self._state.selected.get(iteration))

    def _is_over(self, iteration: int) -> bool:
        return WeightsId(Version(iteration)) in self._hub.dispatcher.directory.weights

    def _is_idle(self, iteration: int) -> bool:
        """Whether nothing waits, and one that rolls out asks for work that it holds the old weights for, or all that
        train do."""
        dispatcher, old = self._hub.dispatcher, WeightsId(Version(iteration - 1))
        scheduler, known = dispatcher.scheduler, dispatcher.directory.workers
        if scheduler.is_waited_for():
            return False
        asks = any(
            not each.trains and old in each.holds and scheduler.asks(worker) and scheduler.serves(worker)
            for worker, each in known.items()
        )
        trainers_hold = all(old in each.holds for each in known.values() if each.trains)
        return asks or (trainers_hold and dispatcher.assist.is_starved(self._hub.clock.now()))
