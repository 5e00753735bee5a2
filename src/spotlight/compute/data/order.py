"""The order of prompts: prompt number n of a run, a pure function of the run seed and n.

Tasks (GenEval's tags) alternate, so that a task with few prompts is seen as often as one with many; within a task
every prompt comes once before any repeats. A run's frontier is therefore a position, never a shuffle state.
"""

from collections.abc import Sequence

from spotlight.core.errors import InputError
from spotlight.core.rng import Purpose, derive_key, shuffled
from spotlight.core.types import Prompt

EPOCHS_KEPT_PER_TASK = 2


class PromptOrder:
    """An endless, seeded sequence over a finite prompt set."""

    def __init__(self, prompts: Sequence[Prompt], run_seed: int) -> None:
        if not prompts:
            raise InputError("the prompt set is empty, so there is nothing to draw; pass at least one prompt.")
        by_task: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            by_task.setdefault(prompt.scene.tag if prompt.scene else "", []).append(prompt)
        self._tasks = [by_task[tag] for tag in sorted(by_task)]
        self._run_seed = run_seed
        self._epochs: dict[tuple[int, int], list[Prompt]] = {}
        """Cached shuffles by (task, epoch); neighbouring prompt numbers share them."""

    def take(self, start: int, count: int) -> list[Prompt]:
        """Return prompts number start .. start+count-1."""
        return [self._at(number) for number in range(start, start + count)]

    def _at(self, number: int) -> Prompt:
        task = number % len(self._tasks)
        prompts = self._tasks[task]
        epoch, index = divmod(number // len(self._tasks), len(prompts))
        order = self._epochs.get((task, epoch))
        if order is None:
            if len(self._epochs) >= EPOCHS_KEPT_PER_TASK * len(self._tasks):
                self._epochs.clear()
            order = shuffled(prompts, derive_key(Purpose.ORDER, self._run_seed, task, epoch))
            self._epochs[task, epoch] = order
        return order[index]
