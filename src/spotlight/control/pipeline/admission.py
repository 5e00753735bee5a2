"""One-step asynchrony: which groups of the next iteration are rolled out before there are new weights.

    AHEAD --its turn, and who rolls out has nothing to do--> STALE     drawn with version k, trained by iteration k+1
      |
      `----- version k+1 is within reach --------------> FRESH     drawn with version k+1

Groups are admitted whole and in the order in which the next iteration's updates need them, one at a time and as late
as possible: what is admitted is begun at once, and what is not is drawn with the new weights. A group that is STALE
stays so, however late it is finished; it is neither issued again nor thrown away. With a fixed number, so that every
run trains the same, that many are admitted at the first occasion.

Invariant: never more than the share, each group once, none after the new version came
(tests/property/test_admission_property.py). So a sample is at most one version old when it is trained on, which the
ledger checks at every step and the audit at every issue (tests/storm).
"""

from collections.abc import Collection, Sequence
from enum import StrEnum
from math import floor

ROUNDING = 1e-9
"""A share times a number of groups that is whole but for this is whole."""


class GroupState(StrEnum):
    """With which weights a group of the next iteration is drawn."""

    AHEAD = "ahead"
    """Not decided yet."""
    STALE = "stale"
    FRESH = "fresh"


def most_stale(groups: int, share: float) -> int:
    """Groups of an iteration that may be one version old."""
    return floor(groups * share + ROUNDING)


class Admission:
    """The groups of one iteration, while the one before it is trained on."""

    def __init__(self, order: Sequence[int], share: float, is_fixed: bool, admitted: Collection[int] = ()) -> None:
        """`order` is how the groups are needed; `admitted` are those that the journal shows to be so."""
        self._states = {group: GroupState.STALE if group in admitted else GroupState.AHEAD for group in order}
        self._most = most_stale(len(order), share)
        self._is_fixed = is_fixed

    def state(self, group: int) -> GroupState:
        return self._states[group]

    @property
    def has_room(self) -> bool:
        """Whether any more may be admitted."""
        return bool(self._next())

    def admit(self, is_idle: bool) -> list[int]:
        """The groups to be drawn with the old weights now; `is_idle`: who rolls out has nothing to do."""
        admitted = self._next() if is_idle or self._is_fixed else []
        self._states.update(dict.fromkeys(admitted, GroupState.STALE))
        return admitted

    def end(self) -> None:
        """The new weights are within reach: whatever is left is drawn with them."""
        self._states.update(dict.fromkeys(self._in(GroupState.AHEAD), GroupState.FRESH))

    def _next(self) -> list[int]:
        room = self._most - len(self._in(GroupState.STALE))
        return self._in(GroupState.AHEAD)[: room if self._is_fixed else min(room, 1)]

    def _in(self, state: GroupState) -> list[int]:
        return [group for group, theirs in self._states.items() if theirs is state]
