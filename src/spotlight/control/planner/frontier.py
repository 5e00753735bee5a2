"""The plans that fit: choosing the steps of a preview fixes how many end before training does."""

from collections.abc import Sequence

import msgspec

from spotlight.control.planner.timing import TimeModel


class Candidate(msgspec.Struct, frozen=True):
    """`previews` in all, of `steps` each."""

    steps: int
    previews: int


def frontier(
    arms: Sequence[int], full_steps: int, time: TimeModel, budget_s: float, row_steps_per_s: float, most: int
) -> tuple[Candidate, ...]:
    """One candidate per arm, fewest steps first; a preview with more steps than an exact rollout is never one."""
    steps = sorted(arm for arm in arms if arm <= full_steps) or [full_steps]
    return tuple(Candidate(arm, min(most, time.fits(budget_s, arm, row_steps_per_s))) for arm in steps)
