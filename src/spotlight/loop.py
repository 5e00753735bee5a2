"""The training loop: one line per stage of an iteration.

Each line is one call on one collaborator, and does nothing if the journal shows that it is done. So the same lines
start a run, resume it and continue after any loss. Serial or overlapped, with or without spot slots and exploration:
these are properties of the collaborators, not branches here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol

from spotlight.control.run_state import RunState
from spotlight.controller.checkpoints import Checkpoints
from spotlight.controller.encoded_ahead import Embeddings
from spotlight.controller.exploration import Explorer
from spotlight.controller.held_out import HeldOut
from spotlight.controller.overlap import Ahead
from spotlight.controller.rollouts import Rollouts
from spotlight.controller.training import Training
from spotlight.core.clock import Clock
from spotlight.core.errors import Stopped
from spotlight.core.events import SAMPLES, AnyEvent, Compared, IterationDone
from spotlight.core.work import Policy


class Limits(Protocol):
    """Decides when an unfinished run must stop."""

    def check(self) -> None:
        """Raise Stopped if a budget is spent or a drain was requested."""


@dataclass
class Loop:
    """Calls the collaborators of a run in order."""

    rollouts: Rollouts
    training: Training
    checkpoints: Checkpoints
    explorer: Explorer
    ahead: Ahead
    embeddings: Embeddings
    held_out: HeldOut
    limits: Limits
    state: RunState
    clock: Clock
    emit: Callable[[AnyEvent], None]
    iterations: int

    async def run(self) -> None:
        """Run all remaining iterations."""
        async with self.checkpoints:
            await self.training.ready()
            await self.held_out.begin(self.state.iterations_done)
            for iteration in range(self.state.iterations_done, self.iterations):
                await self.stop_if_asked()
                await self.iterate(iteration)
            await self.held_out.finished(self.iterations)
            await self.checkpoints.finish()

    async def iterate(self, iteration: int) -> None:
        """Roll out, compare, train while idle slots preview the next prompts, publish."""
        began = self.clock.now()
        await self.embeddings.ready(iteration)
        async with self.training.beside(iteration):
            self.rollouts.issue(iteration, self.state.selected.get(iteration))
            self.ahead.begin(iteration + 1)
            await self.rollouts.taken(iteration)
            self.explorer.begin_early(iteration + 1)
            await self.rollouts.finished(iteration)
            compared = self.rollouts.compare(iteration)
            self.explorer.learn(iteration)
            rolled_out = self.clock.now()
            self.training.claim()
            self.explorer.begin(iteration + 1)
        trained = self.clock.now()

        await self.held_out.finished(iteration)
        await self.training.write(iteration + 1, Policy.BEHAVIOUR)
        await self.explorer.close(iteration + 1)
        self.ahead.close(iteration + 1)
        await self.training.publish(iteration + 1, Policy.BEHAVIOUR)
        self.settle(iteration, compared, rollout_s=rolled_out - began, train_s=trained - rolled_out)
        await self.held_out.begin(iteration + 1)
        await self.checkpoints.begin()

    async def stop_if_asked(self) -> None:
        """Save a checkpoint before stopping between iterations, so that a resume repeats nothing."""
        try:
            self.limits.check()
        except Stopped:
            await self.checkpoints.finish()
            raise

    def settle(self, iteration: int, compared: Compared, rollout_s: float, train_s: float) -> None:
        """Record the end of the iteration; from now on only updates after a checkpoint are ever repeated.

        `train_s` is the training time after the last rollout: the time available for previews.
        """
        rewards = [reward for group in compared.rewards for reward in group if reward == reward]
        self.emit(
            IterationDone(
                iteration=iteration,
                rollout_s=rollout_s,
                train_s=train_s,
                reward=fmean(rewards) if rewards else float("nan"),
                figures={
                    "flat_groups": float(sum(len(set(group)) == 1 for group in compared.rewards)),
                    SAMPLES: float(len(rewards)),
                },
            )
        )
