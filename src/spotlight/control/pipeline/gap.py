"""GAP, the generation-axis pipeline: an update trains on complete groups while other groups are still rolled out.

Each update of an iteration has its own groups: disjoint, by identity, the same after a resume. The groups of an update
are trained in parts, and one optimizer step ends it.

    left --complete, and enough of them--> one part --> ... --> the final part: no group is left

Invariant: the parts of an update contain each of its groups once, none before it is complete, and only the last one is
final; of fixed parts neither order nor size depends on the order of arrival (tests/property/test_parts_property.py).
The gradient does not depend on the parts (tests/property/test_pipeline_gradient_property.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from spotlight.core.rng import Purpose, derive_key, shuffled


@dataclass(frozen=True)
class Part:
    """Some groups of an update, in ascending order."""

    groups: tuple[int, ...]
    is_final: bool


@dataclass(frozen=True)
class Awaited:
    """The next part is ready when `count` of these groups are complete."""

    groups: tuple[int, ...]
    count: int
    left: tuple[int, ...]
    """All groups that were not trained on yet."""


class Parts:
    """The groups of one update that were not trained on yet."""

    def __init__(self, groups: Sequence[int], least: int, is_fixed: bool) -> None:
        """A part has `least` groups or a multiple of it, unless it is the last; a fixed part has exactly `least`.

        Multiples, because `least` is set to the number of groups that fills the batches of all ranks.
        """
        self._left = sorted(groups)
        self._least = least
        self._is_fixed = is_fixed

    def take(self, is_complete: Callable[[int], bool]) -> Part | None:
        """Take the next part; None if too few groups are complete."""
        awaited = self.awaited()
        ready = [group for group in awaited.groups if is_complete(group)]
        if len(ready) < len(self._left):
            ready = ready[: len(ready) // self._least * self._least]
        if not ready:
            return None
        taken = set(ready)
        self._left = [group for group in self._left if group not in taken]
        return Part(tuple(ready), is_final=not self._left)

    def awaited(self) -> Awaited:
        """The groups that the next part waits for."""
        groups = tuple(self._left[: self._least] if self._is_fixed else self._left)
        return Awaited(groups, min(self._least, len(groups)), tuple(self._left))


def group_positions(groups: int, updates: int, run_seed: int, iteration: int) -> dict[int, int]:
    """Position of each group in the order in which the updates need them: all groups of the first update first."""
    dealt = groups_by_update(range(groups), updates, run_seed, iteration)
    needed = [group for update in dealt for group in sorted(update)]
    return {group: position for position, group in enumerate(needed)}


Group = TypeVar("Group")


def groups_by_update(groups: Sequence[Group], updates: int, run_seed: int, iteration: int) -> list[list[Group]]:
    """The iteration's groups dealt to its updates.

    Shuffled, because the tasks of prompts alternate: otherwise every update would always have the same tasks.
    """
    order = shuffled(groups, derive_key(Purpose.ORDER, run_seed, "updates", iteration))
    count = min(updates, len(groups))
    return [order[number::count] for number in range(count)]
