"""Previews where slots are missing: how many pay, beside training and after it, by expected gain per second.

With all of its slots a run previews beside training, which costs no time. With fewer, or none, previews may be drawn
after training by all slots, trainers too, while the loop waits. They then cost seconds and must be worth them. Groups
of twice the variance are worth about two iterations (`gain.py`), so the seconds per unit of progress are

    (training + rollouts + wait) / gain
    wait = (work of the previews - work that fits beside training) / speed of all slots

A choice is a number of prompts, the most varied ones, and of seeds of each. Few previews are spent on few prompts: up
to a group's size they select nothing. No previews at all is a choice too, with a gain of 1. A preview also costs its
share of audits, which are rollouts.

Invariant: no choice of the grid is better, none included (tests/property/test_shortage_property.py).
"""

from collections.abc import Callable, Sequence

import msgspec

from spotlight.control.explore.gain import excess


class Shortage(msgspec.Struct, frozen=True, kw_only=True):
    """A run that lacks slots, when training is about to begin; work is in row-steps."""

    group_size: int
    prompts: int
    """Prompts that may be explored: those whose rewards vary."""
    rolled_out: int
    """Prompts of an iteration."""
    beside: float
    """Work on previews that the present slots do while the gang trains."""
    speed: float
    """Work per second of all slots after training."""
    iteration_s: float
    """Seconds of an iteration that waits for no previews."""

    def after_s(self, work: float) -> float:
        """Seconds after training until this work is done."""
        return max(0.0, work - self.beside) / self.speed


class PayingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Previews of `steps` steps of `seeds` seeds of the `prompts` most varied prompts; none if `seeds` is 0."""

    prompts: int = 0
    seeds: int = 0
    steps: int
    gain: float = 1.0
    """Promised variance over that of fresh seeds, mean over all prompts."""
    wait_s: float = 0.0
    """Seconds of previews and their audits that do not fit beside training."""
    seconds_per_gain: float


def paying_plan(given: Shortage, rho: dict[int, float], most_seeds: int, cost: Callable[[int], float]) -> PayingPlan:
    """The plan with the fewest seconds per unit of progress; of equal ones that with the fewest previews.

    `rho` is the correlation of previews by steps, `cost` the work of a preview by steps.
    """
    best = PayingPlan(steps=min(rho), seconds_per_gain=given.iteration_s)
    for steps, correlation in sorted(rho.items()):
        for seeds in _counts(given.group_size, most_seeds):
            bought = correlation**2 * excess(seeds, given.group_size) / given.rolled_out
            for prompts in _counts(0, given.prompts):
                wait_s = given.after_s(prompts * seeds * cost(steps))
                gain = 1 + prompts * bought
                value = (given.iteration_s + wait_s) / gain
                if value < best.seconds_per_gain:
                    best = PayingPlan(
                        prompts=prompts,
                        seeds=seeds,
                        steps=steps,
                        gain=gain,
                        wait_s=wait_s,
                        seconds_per_gain=value,
                    )
    return best


def _counts(above: int, most: int) -> Sequence[int]:
    """Numbers beyond `above`, up to `most`, an eighth apart: the value is flat around its best."""
    counts, number = [], above + 1
    while number < most:
        counts.append(number)
        number += max(1, number // 8)
    return [*counts, most] if most > above else counts
