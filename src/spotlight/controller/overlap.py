"""Rollouts ahead of the weights: while iteration k trains, the first groups of k+1 are begun with version k.

    begin(k+1): previews are in --> seeds are chosen --> a group whenever the slots that roll out are idle, even while
                other slots still draw the last rollouts of k
    close(k+1): training is over; if seeds were not chosen before, no group is stale, unless the number is fixed
    k+1 is published: no more groups; `Rollouts.issue` draws the rest with it

`control/pipeline/staleness.py` decides, again after every change. Admitted groups are in the journal, so that after a
restart nothing is decided twice (tests/journeys/test_asynchrony.py).
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from spotlight.control.pipeline.config import PipelineConfig
from spotlight.control.pipeline.gap import group_positions
from spotlight.control.pipeline.staleness import Admission
from spotlight.control.run_state import RunState
from spotlight.controller.exploration import Explorer
from spotlight.controller.hub import Hub
from spotlight.controller.rollouts import Rollouts
from spotlight.core.types import Version
from spotlight.core.work import WeightsId


class Ahead(Protocol):
    """Interface of asynchrony for the loop; `NoAsynchrony` without it."""

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
    """Limits on how far rollouts may be ahead of training."""

    groups: int
    """Groups per iteration."""
    updates: int
    run_seed: int
    iterations: int
    pipeline: PipelineConfig
    is_fixed: bool
    """Whether the number of stale groups must not depend on slots and timing."""

    def admission(self, iteration: int, rollouts: Rollouts) -> Admission:
        """Admission for the groups that the journal has not issued yet."""
        needed = group_positions(self.groups, self.updates, self.run_seed, iteration)
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
        """Admit groups from now on, as soon as previews of the iteration are in."""
        self._admission = None
        if iteration < self._lead.iterations:
            self._rollouts.audit_ahead(iteration, self._state.selected.get(iteration))
            self._task = asyncio.create_task(self._guarded(iteration))

    def close(self, iteration: int) -> None:
        """End the admission, because training is over: keep a running one, admit a fixed number at once, else none."""
        if iteration >= self._lead.iterations or self._admission is not None:
            return
        if self._lead.is_fixed:
            self._admission = self._lead.admission(iteration, self._rollouts)
            self._admit(iteration, self._admission)
        if self._task is not None:
            self._task.cancel()

    async def _guarded(self, iteration: int) -> None:
        """Fail every waiter with an error of this task."""
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
        """Whether nothing waits, and a worker that rolls out has a pull and the old weights, or all trainers starve and
        have them."""
        dispatcher, old = self._hub.dispatcher, WeightsId(Version(iteration - 1))
        scheduler, known = dispatcher.scheduler, dispatcher.directory.workers
        if scheduler.has_waiting():
            return False
        asks = any(
            not each.trains and old in each.holds and scheduler.has_pull(worker) and scheduler.serves(worker)
            for worker, each in known.items()
        )
        trainers_hold = all(old in each.holds for each in known.values() if each.trains)
        return asks or (trainers_hold and dispatcher.assist.is_starved(self._hub.clock.now()))
