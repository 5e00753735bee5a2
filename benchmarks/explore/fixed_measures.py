"""Measures that do not move with the luck of the plain run: fixed scores, area under the curve, second recogniser.

Iterations to a fixed score are read where the mean of two consecutive evaluations first reaches it, in both arms. A run
that never does counts with all its iterations; the unit says how many, and of which arm: without the plain ones the
ratio is a lower bound, without the exploring ones an upper bound. A pair in which neither does is left out. Intervals
resample seeds.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.explore.figures import Arm, ArmResult
from benchmarks.lib.bootstrap import interval
from benchmarks.lib.crossings import first_reaching_mean
from benchmarks.lib.figures import Figure
from benchmarks.lib.fixed_scores import FIXED_SCORES

Pair = tuple[ArmResult, ArmResult]


def fixed_figures(prefix: str, base: Arm, arm: Arm, pairs: Sequence[Pair]) -> dict[str, Figure]:
    """Figures of the pairs of one experiment: a run of the base arm, and one of `arm` with the same seed."""
    figures: dict[str, Figure] = {}
    for score in FIXED_SCORES.get(pairs[0][0].family, ()):
        figures |= _at_score(prefix, base, arm, score, pairs)
    for place, each in enumerate((base, arm)):
        runs = [pair[place] for pair in pairs]
        areas = [area(pair[place], min(one.points[-1].iteration for one in pair)) for pair in pairs]
        name = f"{prefix}_{each.value}"
        figures[f"{name}_area"] = _over_seeds(areas, "mean held-out reward over the iterations of both arms")
        figures[f"{name}_final_reward_interval"] = _over_seeds([run.points[-1].reward for run in runs], "reward")
        judged = [judge for run in runs if (judge := run.points[-1].judge) is not None]
        if len(judged) == len(runs):
            figures[f"{name}_final_judge"] = _over_seeds(judged, "score of the second recogniser")
    return figures


def _at_score(prefix: str, base: Arm, arm: Arm, score: float, pairs: Sequence[Pair]) -> dict[str, Figure]:
    known: list[tuple[float, float]] = []
    missed = {base: 0, arm: 0}
    for pair in pairs:
        found = [iterations_to(run, score) for run in pair]
        if found == [None, None]:
            continue
        missed[base] += found[0] is None
        missed[arm] += found[1] is None
        first, second = (
            float(run.points[-1].iteration) if each is None else each for run, each in zip(pair, found, strict=True)
        )
        known.append((first, second))
    if not known:
        return {}
    notes = [f"{count} of {len(known)} {each.value} runs never reached it" for each, count in missed.items() if count]
    notes += [f"{len(pairs) - len(known)} pairs left out that never did"] if len(known) < len(pairs) else []
    unit = "; ".join([f"iterations to {score:.2f}", *notes])
    ratios = [theirs / ours for theirs, ours in known if ours > 0]
    return {
        f"{prefix}_{base.value}_iterations_to_{score:.2f}": _over_seeds([theirs for theirs, _ in known], unit),
        f"{prefix}_{arm.value}_iterations_to_{score:.2f}": _over_seeds([ours for _, ours in known], unit),
        f"{prefix}_iterations_ratio_at_{score:.2f}": _over_seeds(ratios, f"times fewer {unit}", geometric),
    }


def iterations_to(run: ArmResult, score: float) -> float | None:
    spent = [np.array([float(point.iteration)]) for point in run.points]
    found = first_reaching_mean([point.reward for point in run.points], spent, score)
    return None if found is None else float(found[0])


def area(run: ArmResult, until: int) -> float:
    """Mean held-out reward over the iterations up to `until`: the area below straight lines between evaluations."""
    iterations = [point.iteration for point in run.points]
    rewards = [point.reward for point in run.points]
    x = [*(each for each in iterations if each < until), until]
    return float(np.trapezoid(np.interp(x, iterations, rewards), x) / until)


def geometric(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def arithmetic(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _over_seeds(values: Sequence[float], unit: str, middle: Callable[[Sequence[float]], float] = arithmetic) -> Figure:
    low, high = interval(values, middle)
    return Figure(value=middle(values), low=low, high=high, unit=f"{unit}; 95 % interval over {len(values)} seeds")
