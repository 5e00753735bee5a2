"""Which groups each optimizer step of an iteration trains on: disjoint, by identity, the same after a resume."""

from collections.abc import Sequence
from typing import TypeVar

from spotlight.core.rng import Purpose, derive_key, shuffled

Group = TypeVar("Group")


def groups_by_update(groups: Sequence[Group], updates: int, run_seed: int, iteration: int) -> list[list[Group]]:
    """The iteration's groups dealt out to its updates.

    Shuffled, because prompts arrive with tasks in turns: every other group would always be of the same tasks.
    """
    order = shuffled(groups, derive_key(Purpose.ORDER, run_seed, "updates", iteration))
    count = min(updates, len(groups))
    return [order[number::count] for number in range(count)]
