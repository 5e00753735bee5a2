"""Checkpoints that nobody waits for: the loop begins one, the training worker writes it beside its other work.

    begin --Save--> the gang goes on, a copy of its state is written --Saved--> it counts: journal, files that can go
                                 |
                                 +-- the gang is lost: it never counts, and the next iteration begins one anew

One is written at a time: the next, a stop and the end of the run wait for it. Invariant: one that counts is whole on
disk and of steps that the gang of that moment has; a run that is stopped or finished has one of its last step
(tests/journeys/test_checkpoints.py).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from spotlight.control.run_state import RunState
from spotlight.controller.gang import Gang, GangLost, Ordered
from spotlight.controller.hub import Hub
from spotlight.controller.payloads import Storage
from spotlight.controller.training import Training
from spotlight.core.events import AnyEvent, Checkpointed


@dataclass(frozen=True)
class Cadence:
    """How often there is one."""

    updates: int
    """Steps of an iteration."""
    every: int
    """Iterations."""

    def periods(self, step: int) -> int:
        """Checkpoints that should have been made by then."""
        return step // self.updates // self.every


@dataclass(frozen=True)
class _Writing:
    step: int
    task: asyncio.Task[None]


class Checkpoints:
    """The one that is being written, and when there is another."""

    def __init__(
        self,
        hub: Hub,
        gang: Gang,
        training: Training,
        state: RunState,
        storage: Storage,
        cadence: Cadence,
        emit: Callable[[AnyEvent], None],
    ) -> None:
        self._hub = hub
        self._gang = gang
        self._training = training
        self._state = state
        self._storage = storage
        self._cadence = cadence
        self._emit = emit
        self._writing: _Writing | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *problem: object) -> None:
        """One that is not whole when the run ends otherwise never counts."""
        if self._writing is not None:
            task = self._writing.task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def begin(self) -> None:
        """One of all steps so far, where one is due; returns before it is written."""
        step = self._hub.dispatcher.ledger.steps
        if self._is_due(step):
            await self._written()
        if self._is_due(step):
            await self._begin(step)

    async def finish(self) -> None:
        """One of all steps so far, on disk."""
        step = self._hub.dispatcher.ledger.steps
        while not self._is_kept(step):
            await self._written()
            if not self._is_kept(step):
                await self._begin(step)

    def _is_kept(self, step: int) -> bool:
        return self._state.checkpoint is not None and self._state.checkpoint.step == step

    def _is_due(self, step: int) -> bool:
        """Also after its time, where the one that was begun then was lost."""
        newest = self._state.checkpoint
        covered = newest.step if newest is not None else 0
        begun = self._writing.step if self._writing is not None else covered
        return self._cadence.periods(step) > self._cadence.periods(begun)

    async def _written(self) -> None:
        """Whatever becomes of the one under way."""
        if self._writing is not None:
            await self._writing.task

    async def _begin(self, step: int) -> None:
        path = f"checkpoints/step_{step:06d}"
        while True:
            try:
                await self._training.through(step // self._cadence.updates - 1)
                saving = self._gang.save(step, path)
                break
            except GangLost:
                continue
        self._writing = _Writing(step, asyncio.create_task(self._count(saving, Checkpointed(step=step, path=path))))

    async def _count(self, saving: Ordered, event: Checkpointed) -> None:
        """Once it is durable; then tensors that it covers can go. What fails here fails for whoever waits."""
        try:
            await self._gang.saved(saving)
            self._emit(event)
            covered = event.step // self._cadence.updates
            self._storage.covered(covered)
            self._hub.dispatcher.ledger.retire(covered - 1)
        except GangLost:
            # It may be whole all the same, but the next gang may be on its way to the one before already.
            pass
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._hub.fail(error)
        finally:
            self._writing = None
