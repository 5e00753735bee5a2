"""One-step asynchrony: which groups of the next iteration are rolled out with the current weights.

    AHEAD --first in order, and a slot is idle---------> STALE     drawn with version k, trained by iteration k+1
      |
      `----- version k+1 is published -----------------> FRESH     drawn with version k+1

Groups are admitted whole, in the order in which the next iteration's updates need them, one at a time and as late as
possible: an admitted group begins at once, the others are drawn with the new weights. A STALE group stays so, however
late it finishes; it is neither issued again nor discarded. With a fixed number, so that every run trains the same, all
of them are admitted at the first occasion.

Invariant: never more than the share, each group once, none after the new version is published
(tests/property/test_admission_property.py). So a sample is at most one version old when it is trained on, which the
ledger checks at every optimizer step, the trainer at every part and the audit at every issue (tests/storm,
tests/unit/test_training_role.py).

The names of the figures that an optimizer step reports for stale and fresh rows are here too.
"""

from collections.abc import Collection, Sequence
from enum import StrEnum
from math import floor

from spotlight.core.errors import Stopped
from spotlight.core.types import Sample

ROUNDING = 1e-9
"""Tolerance for share times groups, which is not exact: a product this close below a whole number is whole."""


class GroupState(StrEnum):
    """The weights that a group of the next iteration is drawn with."""

    AHEAD = "ahead"
    """Not yet decided."""
    STALE = "stale"
    FRESH = "fresh"


def check_versions(samples: Sequence[Sample], iteration: int, takes_stale: bool) -> None:
    """Refuse samples that this iteration must not train on."""
    oldest = iteration - 1 if takes_stale else iteration
    for sample in samples:
        if not oldest <= sample.version <= iteration:
            allowed = f"{oldest} and {iteration}" if takes_stale else f"{iteration}"
            raise Stopped(
                f"the sample of prompt {sample.prompt}, seed {sample.seed} is of version {sample.version} but "
                f"iteration {iteration} trains on version {allowed} only, because its loss is wrong for others; roll "
                "it out again."
            )


def most_stale(groups: int, share: float) -> int:
    """Largest number of groups of an iteration that may be one version old."""
    return floor(groups * share + ROUNDING)


class Admission:
    """The groups of the next iteration, while the current one is trained on."""

    def __init__(self, order: Sequence[int], share: float, is_fixed: bool, admitted: Collection[int] = ()) -> None:
        """`order` is the order in which the groups are needed; `admitted` are those that the journal has issued."""
        self._states = {group: GroupState.STALE if group in admitted else GroupState.AHEAD for group in order}
        self._ahead = [group for group in order if group not in admitted]
        self._room = most_stale(len(order), share) - (len(order) - len(self._ahead))
        self._is_fixed = is_fixed

    def state(self, group: int) -> GroupState:
        return self._states[group]

    @property
    def has_room(self) -> bool:
        """Whether any more groups may be admitted."""
        return self._room > 0 and bool(self._ahead)

    def admit(self, is_idle: bool) -> list[int]:
        """Admit groups to draw with the old weights now; `is_idle`: the slots that roll out are idle."""
        if not self.has_room or not (is_idle or self._is_fixed):
            return []
        count = self._room if self._is_fixed else 1
        admitted, self._ahead = self._ahead[:count], self._ahead[count:]
        self._room -= len(admitted)
        self._states.update(dict.fromkeys(admitted, GroupState.STALE))
        return admitted

    def end(self) -> None:
        """Close the admission, because the new weights are published: the other groups are drawn with them."""
        self._states.update(dict.fromkeys(self._ahead, GroupState.FRESH))
        self._ahead = []


CLIPPED_FRESH, CLIPPED_STALE = "clip_fraction_fresh", "clip_fraction_stale"
"""Share of rows beyond the clip range around the policy that drew them."""
DRIFT_FRESH, DRIFT_STALE = "drift_fresh", "drift_stale"
"""Squared distance of velocities from those of the policy that drew the row."""
STALE_SHARE = "stale_share"
DECOUPLED_SHARE = "decoupled_share"
"""Share of rows that were clipped around the iteration's first weights instead."""
OF_STALENESS = frozenset({CLIPPED_FRESH, CLIPPED_STALE, DRIFT_FRESH, DRIFT_STALE, STALE_SHARE, DECOUPLED_SHARE})
