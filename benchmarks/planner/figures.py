"""The bandit and the fixed plans of each workload, and the ratios of their payoffs."""

from collections.abc import Sequence

import msgspec
import numpy as np

from benchmarks.lib.figures import Figure
from benchmarks.planner.run import BANDIT, DEFAULT, ITERATIONS, Plan, Run, Workload, fixed_plans

EARLY, LATE, ALL = range(1, 11), range(11, ITERATIONS), range(1, ITERATIONS)


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The bandit and the fixed plans of one workload; runs at equal positions have equal seeds."""

    workload: Workload
    bandit: list[Run]
    fixed: dict[str, list[Run]]

    @classmethod
    def of(cls, workload: Workload, runs: Sequence[Run]) -> "Compared":
        mine = [each for each in runs if each.workload == workload.name]
        seeds = sorted({each.seed for each in mine})
        plans = sorted({each.plan for each in mine if each.plan != BANDIT})
        return cls(
            workload=workload,
            bandit=[_of(mine, seed, BANDIT) for seed in seeds],
            fixed={str(plan): [_of(mine, seed, plan) for seed in seeds] for plan in plans},
        )

    @property
    def iterations(self) -> range:
        """Iterations of the figure: the first ones, or those around changes of capacity."""
        return EARLY if len(self.workload.spot) == 1 else ALL

    def best(self, iterations: range) -> str:
        return max(self.fixed, key=lambda plan: mean_payoff(self.fixed[plan], iterations))

    def ratios(self, iterations: range) -> list[float]:
        """The bandit over the best fixed plan, by seed."""
        best = self.fixed[self.best(iterations)]
        return [
            mean_payoff([own], iterations) / mean_payoff([other], iterations)
            for own, other in zip(self.bandit, best, strict=True)
        ]


def _of(runs: Sequence[Run], seed: int, plan: Plan) -> Run:
    return next(each for each in runs if each.seed == seed and each.plan == plan)


def mean_payoff(runs: Sequence[Run], iterations: range) -> float:
    return float(np.mean([[each.payoffs[number] for number in iterations] for each in runs]))


def figures(compared: Sequence[Compared]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    for each in compared:
        name = each.workload.name
        spans = {"": each.iterations, "_late": LATE} if each.iterations is EARLY else {"": ALL}
        for suffix, iterations in spans.items():
            ratios, best = each.ratios(iterations), each.best(iterations)
            value = mean_payoff(each.bandit, iterations) / mean_payoff(each.fixed[best], iterations)
            span = f"iterations {iterations[0]} to {iterations[-1]}"
            tried = f"the best of {len(fixed_plans(each.workload))} fixed plans"
            unit = f"payoff of the bandit over that of {best}, {tried}; {span}; simulated with modelled rewards"
            key = f"bandit_vs_best_fixed_{name}{suffix}"
            found[key] = Figure(value=value, low=min(ratios), high=max(ratios), unit=unit)
        default = mean_payoff(each.bandit, each.iterations) / mean_payoff(each.fixed[str(DEFAULT)], each.iterations)
        unit = f"payoff of the bandit over that of {DEFAULT}, the default; simulated with modelled rewards"
        found[f"bandit_vs_default_fixed_{name}"] = Figure.single(default, unit)
        found[f"bandit_payoff_{name}"] = _spread(each.bandit, each.iterations)
        found[f"best_fixed_payoff_{name}"] = _spread(each.fixed[each.best(each.iterations)], each.iterations)
    return found


def _spread(runs: Sequence[Run], iterations: range) -> Figure:
    by_seed = [mean_payoff([each], iterations) for each in runs]
    unit = "times the variance of fresh seeds; simulated with modelled rewards"
    return Figure.mean(by_seed, unit)


def fixed_payoffs(compared: Sequence[Compared]) -> dict[str, dict[str, float]]:
    """Mean payoff of every fixed plan that was run in full, by workload."""
    return {
        each.workload.name: {plan: round(mean_payoff(runs, each.iterations), 4) for plan, runs in each.fixed.items()}
        for each in compared
    }
