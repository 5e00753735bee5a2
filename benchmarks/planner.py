"""The bandit against every fixed plan of a sweep, in virtual time.

python benchmarks/planner.py [--workloads words scenes large changing] [--seeds 0 1] [--jobs 2] [--json]
                             [--out docs/results/planner]

The payoff of an iteration is what its groups were worth in the learning model: the variance of their rewards over that
of unselected groups, so 1 without previews. Fixed plans preview `seeds` of every prompt with `steps` and are cut off
when training ends, as any plan is. Of one step count, plans of more seeds than ever finish are the same plan, so the
sweep leaves them out. The best fixed plan is the one with the largest mean payoff over all seeds, known only
afterwards; the bandit starts without knowing anything.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from spotlight.config import load_config
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Profile
from spotlight.core.events import ExplorationClosed, StepCommitted
from spotlight.core.journal import read
from spotlight.folder import RunFolder
from spotlight.runtime.sim.learning import LearningModel, ModelNumerics
from spotlight.runtime.sim.simulate import Simulation, simulate, simulated

ITERATIONS = 21
"""0 has nothing to choose from; 1 to 10 is where the bandit must have learned."""
EARLY, LATE, ALL = range(1, 11), range(11, 21), range(1, 21)
SEEDS = (24, 32, 48, 64, 96, 128, 192)
"""Of a fixed plan, beside the group's own size, which selects nothing."""
STEPS = (2, 3, 4, 5, 6, 8, 10)
SPOT = 8


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe on some hardware, and what it is simulated with."""

    name: str
    recipe: str
    profile: str
    learning: str
    overrides: tuple[str, ...] = ()
    spot: tuple[tuple[float, int], ...] = ((0.0, SPOT),)
    """How many spot slots are there from which second on."""

    def trace(self) -> str:
        """Losses are announced half a minute before."""
        rows, here = ["time_s,node,event,seconds"], 0
        for time_s, count in self.spot:
            rows += [f"{time_s:g},spot-{n},up,0" for n in range(here + 1, count + 1)]
            rows += [f"{time_s:g},spot-{n},notice,30" for n in range(count + 1, here + 1)]
            rows += [f"{time_s + 30:g},spot-{n},kill,0" for n in range(count + 1, here + 1)]
            here = count
        return "\n".join(rows) + "\n"


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="words",
            recipe="words-large-nft+spotlight",
            profile="h200-qwen-image-512",
            learning="words-large-nft",
        ),
        Workload(
            name="scenes",
            recipe="scenes-nft+spotlight",
            profile="h200-qwen-image-512",
            learning="scenes-nft",
            overrides=("algorithm.timesteps_per_sample=2",),
        ),
        Workload(
            name="large",
            recipe="words-large-nft+spotlight",
            profile="h200-qwen-image-1280",
            learning="words-large-nft",
            overrides=("rollout.group_size=8",),
        ),
        Workload(
            name="changing",
            recipe="words-large-nft+spotlight",
            profile="h200-qwen-image-512",
            learning="words-large-nft",
            spot=((0.0, SPOT), (700.0, 3), (1400.0, SPOT)),
        ),
    )
}


class Plan(msgspec.Struct, frozen=True, order=True):
    """Seeds per prompt and steps of a fixed plan; both 0 for the bandit."""

    steps: int
    seeds: int

    def __str__(self) -> str:
        return f"{self.seeds} seeds of {self.steps} steps" if self.steps else "bandit"


BANDIT = Plan(0, 0)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What one simulated run earned."""

    workload: str
    plan: Plan
    seed: int
    payoffs: tuple[float, ...]
    """By iteration."""
    is_always_cut: bool
    """More seeds of as many steps would have changed nothing."""


def run(workload: Workload, plan: Plan, seed: int, extra: Sequence[str] = ()) -> Run:
    """One run from its first iteration to the last."""
    overrides = [f"seed={seed}", f"iterations={ITERATIONS}", *workload.overrides, *extra]
    if plan != BANDIT:
        overrides += ["explore.plan=fixed", f"explore.seeds={plan.seeds}", f"explore.steps={plan.steps}"]
    with tempfile.TemporaryDirectory() as place:
        trace = Path(place) / "trace.csv"
        trace.write_text(workload.trace())
        profile = Profile.load(workload.profile)
        config = simulated(load_config(workload.recipe, [*overrides, f"market.trace={trace}"]), profile)
        numerics = ModelNumerics(LearningModel.load(workload.learning), seed, config.rollout.steps)
        folder = RunFolder(Path(place) / "run")
        folder.path.mkdir()
        prices = PriceTable.load(None)
        simulate(
            Simulation(config=config, recipe=workload.recipe, profile=profile, numerics=numerics, prices=prices), folder
        )
        return _earned(workload, plan, seed, folder)


def _earned(workload: Workload, plan: Plan, seed: int, folder: RunFolder) -> Run:
    progress = [0.0] * (ITERATIONS + 1)
    cut = []
    for record in read(folder.journal):
        event = record.event
        if isinstance(event, StepCommitted):
            progress[event.iteration + 1] = event.figures["progress"]
        elif isinstance(event, ExplorationClosed):
            cut.append(event.discarded > 0)
    payoffs = tuple(float(gain) for gain in np.diff(progress))
    return Run(workload=workload.name, plan=plan, seed=seed, payoffs=payoffs, is_always_cut=bool(cut) and all(cut))


def sweep(workload: Workload, steps: int, seed: int) -> list[Run]:
    """Fixed plans of one step count, up to the first that never finishes."""
    found = []
    group_size = load_config(workload.recipe, list(workload.overrides)).rollout.group_size
    for seeds in sorted({group_size, *SEEDS}):
        if seeds > group_size:
            found.append(run(workload, Plan(steps, seeds), seed))
            if found[-1].is_always_cut:
                break
    return found


def job(workload: Workload, steps: int, seed: int) -> list[Run]:
    os.environ["OMP_NUM_THREADS"] = "1"
    return sweep(workload, steps, seed) if steps else [run(workload, BANDIT, seed)]


# -- results -----------------------------------------------------------------------------------------------------------


def mean_payoff(runs: Sequence[Run], iterations: range) -> float:
    return float(np.mean([[each.payoffs[i] for i in iterations] for each in runs]))


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The bandit beside the best fixed plan of one workload."""

    workload: str
    bandit: dict[str, float]
    """Mean payoff over early, late and all iterations."""
    best: dict[str, tuple[str, float]]
    """The best fixed plan of these iterations, and its mean payoff."""
    by_seed: tuple[float, ...]
    """Bandit over best plan by seed, over the iterations that the figure is about."""
    fixed: dict[str, float]
    """Every fixed plan over all iterations."""

    @property
    def ratio(self) -> float:
        span = "all" if self.workload == "changing" else "early"
        return self.bandit[span] / self.best[span][1]


SPANS = {"early": EARLY, "late": LATE, "all": ALL}


def by_plan(runs: Sequence[Run]) -> dict[Plan, list[Run]]:
    """Fixed plans that were run with every seed; where one seed's sweep ended earlier, its last plan stands for more."""
    plans = sorted({each.plan for each in runs if each.plan != BANDIT})
    seeds = sorted({each.seed for each in runs})
    found: dict[Plan, list[Run]] = {}
    for plan in plans:
        same = [
            max((r for r in runs if r.seed == seed and r.plan.steps == plan.steps and r.plan <= plan), default=None)
            if False
            else _standing(runs, seed, plan)
            for seed in seeds
        ]
        found[plan] = same
    return found


def _standing(runs: Sequence[Run], seed: int, plan: Plan) -> Run:
    alike = [each for each in runs if each.seed == seed and each.plan.steps == plan.steps and each.plan <= plan]
    return max(alike, key=lambda each: each.plan)


def verdict(workload: str, runs: Sequence[Run]) -> Verdict:
    bandit = sorted((each for each in runs if each.plan == BANDIT), key=lambda each: each.seed)
    fixed = by_plan(runs)
    best = {
        span: max(fixed, key=lambda plan, iterations=iterations: mean_payoff(fixed[plan], iterations))
        for span, iterations in SPANS.items()
    }
    span = "all" if workload == "changing" else "early"
    ratios = [
        mean_payoff([own], SPANS[span]) / mean_payoff([other], SPANS[span])
        for own, other in zip(bandit, fixed[best[span]], strict=True)
    ]
    return Verdict(
        workload=workload,
        bandit={name: mean_payoff(bandit, iterations) for name, iterations in SPANS.items()},
        best={name: (str(plan), mean_payoff(fixed[plan], SPANS[name])) for name, plan in best.items()},
        by_seed=tuple(ratios),
        fixed={str(plan): mean_payoff(each, ALL) for plan, each in fixed.items()},
    )
