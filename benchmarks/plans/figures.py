"""Progress per iteration of a plan, and the hours to reserved-only's final score that follow.

Progress is expected, not drawn from a run: thousands of groups are selected from modelled previews by the product's own
functions. It is what the learning model adds per iteration (`spotlight.sim.learning`). The score to reach is the plain
fit's at the mean of the last two evaluations of `reserved-only`; ours needs the progress at which its own fit has it.
Hours are compared with those of the earlier plan on the same machines. The lesser gain of two readings of the fitted
lag counts: averages lag by iterations, the model by progress. Scores of real and modelled races are noisy, so these
ratios are no speedups over `reserved-only`.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from benchmarks.headline.setups import BASELINE, PROFILES, fit_of
from benchmarks.lib.figures import Figure
from benchmarks.plans.run import EARLIER, OURS, SEED, PlanClock, SearchedPlan, chosen_plan, contest, plans_of
from spotlight.control.advantage import Floats
from spotlight.control.explore.config import Precision
from spotlight.control.explore.seeds import Preview, most_varied, select
from spotlight.core.types import SamplerKind
from spotlight.sim.learning import LearningModel

SEEDS = (100, 101, 102, 103)
ITERATIONS = 64
"""Modelled iterations per seed; with 16 to 32 groups each, the mean of all seeds is within 1 %."""
MOST_SEEDS = 32
EXACT = 1e-3
"""Progress to which a score is solved for."""
UNIT = "times sooner than the earlier plan with as many slots, both profiles, modelled"
Clocks = Mapping[tuple[str, str, int, str], PlanClock]


class SearchedRow(NamedTuple):
    """A plan on one fleet: times sooner than the earlier plan, by profile."""

    family: str
    spot: int
    plan: str
    sooner: tuple[float, ...]


@cache
def progress_of(family: str, plan: SearchedPlan) -> tuple[float, ...]:
    """Progress per iteration, by seed; all plans choose from the same draws."""
    config = contest(family, OURS, plan.settings).config(OURS, SEED)
    model = LearningModel.load(str(fit_of(family, OURS)))
    rounded = model.fp8 if config.explore.precision is Precision.FP8 else 1.0
    rho = rounded * model.rho(plan.steps, config.rollout.steps, SamplerKind(config.explore.solver.value))
    prompts, group = config.rollout.prompts, config.rollout.group_size
    found = []
    for seed in SEEDS:
        drawn = np.random.default_rng(seed).standard_normal((ITERATIONS, 2, 3 * prompts, MOST_SEEDS))
        exact = drawn[:, 0, : config.explore.candidates_for(prompts), : plan.seeds]
        previews = rho * exact + math.sqrt(1 - rho * rho) * drawn[:, 1, : exact.shape[1], : plan.seeds]
        varied = [kept_variance(one, other, plan, prompts, group) for one, other in zip(exact, previews, strict=True)]
        found.append(float(np.mean(varied)))
    return tuple(found)


def kept_variance(exact: Floats, previews: Floats, plan: SearchedPlan, prompts: int, group: int) -> float:
    """Mean variance of the exact rewards of an iteration's groups; rows are candidates."""
    rows = [[Preview(seed, float(reward)) for seed, reward in enumerate(row)] for row in previews]
    scouted = most_varied([row[: plan.scouts or len(row)] for row in rows], prompts, group)
    return float(np.mean([exact[row, list(select(rows[row], group))].var(ddof=1) for row in scouted]))


@cache
def needed_progress(family: str) -> float:
    """Progress at which weights that do not lag are expected to have the final score of reserved-only."""
    plain, ours = (LearningModel.load(str(fit_of(family, setup))) for setup in (BASELINE, OURS))
    target = plain.mean(final_iteration(family))
    return math.log((ours.limit - ours.base) / (ours.limit - target)) / ours.rate


def final_iteration(family: str) -> float:
    """Where the mean of the last two evaluations of reserved-only stands."""
    config = contest(family, BASELINE, ()).config(BASELINE, SEED)
    return config.iterations - config.eval.every / 2


def iterations_of(family: str, progress: float) -> Floats:
    """Iterations of ours to the score, if averages lag by iterations and if they lag by progress, as the model's do.

    The first iteration has no previews. Iterations of lag are the fitted progress over that of the chosen plan, whose
    curves were fitted.
    """
    needed, model = needed_progress(family), LearningModel.load(str(fit_of(family, OURS)))
    lag = model.lag / float(np.mean(progress_of(family, chosen_plan(family))))
    low, high = needed, needed + model.lag
    while high - low > EXACT:
        middle = (low + high) / 2
        low, high = (low, middle) if model.reached(middle) >= needed else (middle, high)
    return 1 + np.array([(needed - 1) / progress + lag, (high - 1) / progress])


def hours_of(clocks: Clocks, family: str, spot: int, plan: SearchedPlan) -> Floats:
    """Hours to the score, by profile and kind of lag."""
    iterations = iterations_of(family, float(np.mean(progress_of(family, plan))))
    every = contest(family, OURS, ()).config(OURS, SEED).eval.every
    chosen = [clocks[family, profile, spot, plan.name] for profile in PROFILES]
    return np.array([[clock.hours(float(count), every) for count in iterations] for clock in chosen])


def searched(found: Sequence[PlanClock]) -> list[SearchedRow]:
    """All plans, the soonest first within a family and fleet."""
    clocks = {(clock.family, clock.profile, clock.spot, clock.plan): clock for clock in found}
    rows: list[SearchedRow] = []
    for family, spot in sorted({(clock.family, clock.spot) for clock in found}):
        hours = {plan: hours_of(clocks, family, spot, plan) for plan in plans_of(family)}
        ratios = {plan: tuple(map(float, (hours[EARLIER[family]] / each).min(axis=1))) for plan, each in hours.items()}
        rows += [
            SearchedRow(family, spot, plan.name, ratios[plan])
            for plan in sorted(ratios, key=lambda plan: -mean(ratios[plan]))
        ]
    return rows


def figures_of(found: Sequence[PlanClock]) -> dict[str, Figure]:
    rows, figures = searched(found), dict[str, Figure]()
    for family, spot in sorted({(row.family, row.spot) for row in rows}):
        field = [row for row in rows if (row.family, row.spot) == (family, spot)]
        chosen = next(row for row in field if row.plan == chosen_plan(family).name)
        where = f"{family} {spot}"
        figures[f"{where} chosen"] = over_profiles(chosen)
        figures[f"{where} best"] = over_profiles(field[0])
        ratio = mean(field[0].sooner) / mean(chosen.sooner)
        figures[f"{where} best over chosen"] = Figure.single(ratio, "times sooner than the chosen plan")
    for family in sorted({row.family for row in rows}):
        for plan in plans_of(family):
            unit = "unselected iterations per iteration, modelled"
            figures[f"{family} {plan.name} progress"] = Figure.mean(progress_of(family, plan), unit)
    return figures


def mean(ratios: Sequence[float]) -> float:
    """Geometric mean."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def over_profiles(row: SearchedRow) -> Figure:
    return Figure(value=mean(row.sooner), low=min(row.sooner), high=max(row.sooner), unit=f"{UNIT}; {row.plan}")
