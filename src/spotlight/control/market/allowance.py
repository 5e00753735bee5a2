"""Whether a run with limits rents stand-ins (`market.fallback_s: auto`): as far as its deadline needs and money allows.

    deadline, budget.max_hours    rent if the remaining iterations, without stand-ins, would end after it
    money, budget.max_dollars     rent if the remaining iterations, at the price of all slots on demand, stay within it

With both limits, both must hold. Either counts the remaining iterations at the pace of iterations without stand-ins,
which is measured anew after a resume and leaves out the first iteration, as that contains the start of the workers. So
renting does not change the answer at once, and a run does not alternate: stand-ins go when enough iterations are done
that the rest can do without. They make iterations shorter, so the money is counted for longer than it is spent.

Invariant: what is counted never exceeds the limit while stand-ins are rented (tests/unit/test_allowance.py).
"""

import msgspec

MEMORY = 0.7
"""Weight of the pace so far when one more iteration is done."""


class Allowance(msgspec.Struct, kw_only=True):
    """Decides after every iteration of one life of a run; nothing is rented before the second one has ended."""

    iterations: int
    max_s: float | None
    """Run time at which the run must have ended; None: no deadline."""
    max_dollars: float | None
    dollars_per_s: float
    """Price of all slots of the run if every spot slot had a stand-in."""
    pace_s: float | None = None
    """Fading mean of the seconds of iterations without stand-ins."""
    ended_at: float | None = None
    """Run time at which the last iteration ended; None before the first of this life."""
    is_given: bool = False
    """Whether stand-ins may be rented now."""

    def __post_init__(self) -> None:
        assert self.max_s is not None or self.max_dollars is not None, "a run without limits has no allowance"

    def iterated(self, done: int, at: float, spent: float, stood_in: bool) -> None:
        """Decide anew when `done` iterations are done, at run time `at`, for `spent` dollars.

        `stood_in` is whether stand-ins were rented during the last iteration.
        """
        began, self.ended_at = self.ended_at, at
        if began is not None and not stood_in:
            seconds = at - began
            self.pace_s = seconds if self.pace_s is None else MEMORY * self.pace_s + (1 - MEMORY) * seconds
        if self.pace_s is None:
            return
        left_s = (self.iterations - done) * self.pace_s
        is_late = self.max_s is None or at + left_s > self.max_s
        is_affordable = self.max_dollars is None or spent + left_s * self.dollars_per_s <= self.max_dollars
        self.is_given = is_late and is_affordable
