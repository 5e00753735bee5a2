"""Checkpoints in the background: the loop begins one, the training worker writes it beside its other work.

    begin --Save--> a copy of the gang's state is written while it works --Saved--> it counts: old files are deleted
                                 |
                                 +-- the gang is lost: it never counts, and the next iteration begins another

One is written at a time: the next checkpoint, a stop and the end of the run wait for it. Invariant: a checkpoint that
counts is whole on disk and of steps that the current gang has; a stopped or finished run has one of its last step
(tests/journeys/test_checkpoints.py).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from spotlight.control.run_state import RunState
from spotlight.controller.gang import Gang, GangLost
from spotlight.controller.gang_orders import Ordered
from spotlight.controller.hub import Hub
from spotlight.controller.payloads import Storage
from spotlight.controller.training import Training
from spotlight.core.events import AnyEvent, Checkpointed


@dataclass(frozen=True)
class Cadence:
    """Interval between checkpoints."""

    updates: int
    """Updates per iteration."""
    every: int
    """Iterations per checkpoint."""

    def periods(self, step: int) -> int:
        """Number of checkpoints due by this step."""
        return step // self.updates // self.every


@dataclass(frozen=True)
class _Writing:
    step: int
    task: asyncio.Task[None]


class Checkpoints:
    """Writes checkpoints when they are due, one at a time."""

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
        """Cancel an unfinished checkpoint, which then never counts."""
        if self._writing is not None:
            task = self._writing.task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def begin(self) -> None:
        """Begin a checkpoint of all steps so far if one is due; return before it is written."""
        step = self._hub.dispatcher.ledger.steps
        if self._is_due(step):
            await self._written()
        if self._is_due(step):
            await self._begin(step)

    async def finish(self) -> None:
        """Write a checkpoint of all steps so far and wait until it is on disk."""
        step = self._hub.dispatcher.ledger.steps
        while not self._is_kept(step):
            await self._written()
            if not self._is_kept(step):
                await self._begin(step)

    def _is_kept(self, step: int) -> bool:
        return self._state.checkpoint is not None and self._state.checkpoint.step == step

    def _is_due(self, step: int) -> bool:
        """Whether one is due, also late, after the gang of an earlier attempt was lost."""
        newest = self._state.checkpoint
        covered = newest.step if newest is not None else 0
        begun = self._writing.step if self._writing is not None else covered
        return self._cadence.periods(step) > self._cadence.periods(begun)

    async def _written(self) -> None:
        """Wait for the checkpoint in progress, whether it succeeds or not."""
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
        """Record it once it is durable, then delete the tensors that it covers. An error here fails every waiter."""
        try:
            await self._gang.saved(saving)
            self._emit(event)
            covered = event.step // self._cadence.updates
            self._storage.covered(covered)
            self._hub.dispatcher.ledger.retire(covered - 1)
        except GangLost:
            # The file may be whole all the same, but the next gang may already restore the one before.
            pass
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._hub.fail(error)
        finally:
            self._writing = None
