"""Seconds of training and previews, learned during the run, and the plans that fit them.

A preview of S steps costs (a S + b) row-steps of a slot: `a` is 1 where slots keep their reported speed, `b` is
decoding and scoring in units of steps. Both are fitted by least squares on relative errors with a fading memory and a
prior worth half an observation. An exploration during which slots came or went is left out; any other observation far
from the prediction is clipped to `WILDEST`. The steps of a preview then fix the number of previews that end before
training does: `frontier` lists these plans.

Invariant: the model is a fold of the run's events; the capacity of a plan is recovered from its own prediction, so
resuming needs the journal alone (tests/unit/test_planner.py).
"""

from collections.abc import Sequence

import msgspec

MEMORY = 0.8
"""Weight of an observation after one more iteration."""
PRIOR_SCALE, PRIOR_OVERHEAD = 1.0, 1.0
SCALE_WEIGHT, OVERHEAD_WEIGHT = 0.5, 0.02
"""Weights of the prior: half an observation, at the 5 steps of a typical preview; 0.5 / 5^2 for the overhead."""
WILDEST = 4.0
"""Largest ratio, and inverse of the smallest, of an observed cost over the predicted one."""


class TimeModel(msgspec.Struct, frozen=True, kw_only=True):
    """Sums of the fit; `trained` and `previewed` return the model with one more observation."""

    train_s: float | None = None
    """Fading mean of the training time after the last rollout; None until an iteration was trained."""
    iteration_s: float = 0.0
    """Fading mean of the time of rollouts and training, which may overlap."""
    weight: float = 0.0
    by_inverse: float = 0.0
    by_inverse_squared: float = 0.0
    cost: float = 0.0
    cost_by_inverse: float = 0.0
    relative_error: float | None = None
    """Relative error of the last prediction: predicted over observed, minus 1."""

    def row_steps(self, steps: int) -> float:
        """Cost of one preview in row-steps at the speed that slots report."""
        a11, a12, a22 = self.weight + SCALE_WEIGHT, self.by_inverse, self.by_inverse_squared + OVERHEAD_WEIGHT
        b1, b2 = self.cost + SCALE_WEIGHT * PRIOR_SCALE, self.cost_by_inverse + OVERHEAD_WEIGHT * PRIOR_OVERHEAD
        determinant = a11 * a22 - a12 * a12
        scale, overhead = (b1 * a22 - b2 * a12) / determinant, (a11 * b2 - a12 * b1) / determinant
        if overhead < 0:
            scale, overhead = b1 / a11, 0.0
        elif scale < 0:
            scale, overhead = 0.0, b2 / a22
        return scale * steps + overhead

    def predict(self, previews: int, steps: int, row_steps_per_s: float) -> float:
        """Seconds of `previews` previews on slots with this total speed."""
        return previews * self.row_steps(steps) / row_steps_per_s

    def fits(self, budget_s: float, steps: int, row_steps_per_s: float) -> int:
        """Previews that end within the budget."""
        return int(budget_s * row_steps_per_s / self.row_steps(steps))

    def trained(self, rollout_s: float, train_s: float) -> "TimeModel":
        if self.train_s is None:
            return msgspec.structs.replace(self, train_s=train_s, iteration_s=rollout_s + train_s)
        return msgspec.structs.replace(
            self,
            train_s=MEMORY * self.train_s + (1 - MEMORY) * train_s,
            iteration_s=MEMORY * self.iteration_s + (1 - MEMORY) * (rollout_s + train_s),
        )

    def previewed(
        self, *, steps: int, planned: int, finished: int, predicted_s: float, seconds: float, beside: float = 0.0
    ) -> "TimeModel":
        """Add an observation: `finished` of `planned` previews took `seconds`; predicted were `predicted_s` for all.

        `beside` are row-steps of other work on the same slots.
        """
        if not (planned and predicted_s > 0 and seconds > 0):
            return self
        # If none finished, count one: it takes at least that long.
        done = max(finished, 1) + beside / self.row_steps(steps)
        expected_s = predicted_s * done / planned
        ratio = min(WILDEST, max(1 / WILDEST, seconds / expected_s))
        cost_per_step = ratio * self.row_steps(steps) / steps
        inverse = 1 / steps
        return msgspec.structs.replace(
            self,
            weight=MEMORY * self.weight + 1,
            by_inverse=MEMORY * self.by_inverse + inverse,
            by_inverse_squared=MEMORY * self.by_inverse_squared + inverse * inverse,
            cost=MEMORY * self.cost + cost_per_step,
            cost_by_inverse=MEMORY * self.cost_by_inverse + cost_per_step * inverse,
            relative_error=expected_s / seconds - 1,
        )


class FittingPlan(msgspec.Struct, frozen=True):
    """A plan of `previews` previews with `steps` steps each."""

    steps: int
    previews: int


def frontier(
    arms: Sequence[int], full_steps: int, time: TimeModel, budget_s: float, row_steps_per_s: float, most: int
) -> tuple[FittingPlan, ...]:
    """One plan per arm, fewest steps first; a preview never has more steps than an exact rollout."""
    steps = sorted(arm for arm in arms if arm <= full_steps) or [full_steps]
    return tuple(FittingPlan(arm, min(most, time.fits(budget_s, arm, row_steps_per_s))) for arm in steps)
