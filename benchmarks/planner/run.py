"""The bandit against every fixed plan of a sweep, in virtual time.

python -m benchmarks.planner [--workloads words scenes large changing changing_short] [--seeds 0 1] [--jobs 2]
                             [--parts FOLDER] [--json] [--out docs/results/planner]

The payoff of an iteration is what its groups were worth in the learning model: the variance of their rewards over that
of unselected groups, so 1 without previews. Fixed plans preview `seeds` of every prompt with `steps` and are cut off
when training ends, as any plan is. All of them are screened over a few iterations, at every number of spot slots that
the workload has; those within a tenth of the best, and the default, are run in full, with every seed. The best fixed
plan is the one with the largest mean payoff over all seeds, known only afterwards; the bandit starts without knowing
anything but how the shipped models' previews rank (its prior).
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from spotlight.config import load_config
from spotlight.control.explore.config import ExploreConfig
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Profile
from spotlight.core.events import StepCommitted
from spotlight.core.journal import read
from spotlight.folder import RunFolder
from spotlight.runtime.sim.learning import LearningModel, ModelNumerics
from spotlight.runtime.sim.simulate import Simulation, simulate, simulated

ITERATIONS = 21
"""0 has nothing to choose from; 1 to 10 is where the bandit must have learned."""
EARLY, LATE, ALL = range(1, 11), range(11, ITERATIONS), range(1, ITERATIONS)
SCREENED = 6
"""Iterations of a run that screens."""
NEAR_BEST = 0.9
"""Of the best screened payoff: what plans must reach to be run in full."""
SEEDS = (24, 32, 48, 64, 96, 128, 192)
"""Of a fixed plan; as many as a group keeps, or fewer, select nothing."""
STEPS = (2, 3, 4, 5, 6, 8, 10)
SPOT = 8
PANELS_PER_ROW = 3


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe on some hardware, and what it is simulated with."""

    name: str
    title: str
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
            title="words, 512: 32 groups of 16",
            recipe="words-large-nft+spotlight",
            profile="h200-qwen-image-512",
            learning="words-large-nft",
        ),
        Workload(
            name="scenes",
            title="scenes, 512: 48 groups of 24, short training",
            recipe="scenes-nft+spotlight",
            profile="h200-qwen-image-512",
            learning="scenes-nft",
            overrides=("algorithm.timesteps_per_sample=2",),
        ),
        Workload(
            name="large",
            title="words, 1280: 32 groups of 8",
            recipe="words-large-nft+spotlight",
            profile="h200-qwen-image-1280",
            learning="words-large-nft",
            overrides=("rollout.group_size=8",),
        ),
        Workload(
            name="changing",
            title="words, 512, 4 timesteps: 8, then 3, then 8 spot slots",
            recipe="words-large-nft+spotlight",
            profile="h200-qwen-image-512",
            learning="words-large-nft",
            overrides=("algorithm.timesteps_per_sample=4",),
            spot=((0.0, SPOT), (1600.0, 3), (3400.0, SPOT)),
        ),
        Workload(
            name="changing_short",
            title="words, 512, 2 timesteps: 8, then 3, then 8 spot slots",
            recipe="words-large-nft+spotlight",
            profile="h200-qwen-image-512",
            learning="words-large-nft",
            spot=((0.0, SPOT), (1000.0, 3), (2000.0, SPOT)),
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
DEFAULT = Plan(ExploreConfig().steps, ExploreConfig().seeds)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What one simulated run earned."""

    workload: str
    plan: Plan
    seed: int
    payoffs: tuple[float, ...]
    """By iteration."""


def run(workload: Workload, plan: Plan, seed: int, iterations: int = ITERATIONS) -> Run:
    """One run from its first iteration to the last."""
    overrides = [f"seed={seed}", f"iterations={iterations}", *workload.overrides]
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
        progress = [0.0] * (iterations + 1)
        for record in read(folder.journal):
            if isinstance(record.event, StepCommitted):
                progress[record.event.iteration + 1] = record.event.figures["progress"]
    payoffs = tuple(float(gain) for gain in np.diff(progress))
    return Run(workload=workload.name, plan=plan, seed=seed, payoffs=payoffs)


def screen(workload: Workload, plan: Plan, seed: int) -> Run:
    """A short run at every number of spot slots that the workload has, one after the other."""
    counts = sorted({count for _, count in workload.spot})
    steady = [msgspec.structs.replace(workload, spot=((0.0, count),)) for count in counts]
    runs = [run(each, plan, seed, SCREENED) for each in steady]
    # The first iteration of each has nothing to choose from.
    payoffs = tuple(payoff for each in runs for payoff in each.payoffs[1:])
    return Run(workload=workload.name, plan=plan, seed=seed, payoffs=payoffs)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation, or a screening."""

    workload: Workload
    plan: Plan
    seed: int
    is_screening: bool
    folder: Path | None
    """Of finished jobs."""

    def done(self) -> Run:
        """From the folder if it is there already."""
        kind = "screen" if self.is_screening else "run"
        name = f"{self.workload.name}-{kind}-{self.plan.seeds}x{self.plan.steps}-{self.seed}.json"
        path = self.folder / name if self.folder else None
        if path and path.exists():
            return msgspec.json.decode(path.read_bytes(), type=Run)
        found = (screen if self.is_screening else run)(self.workload, self.plan, self.seed)
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(msgspec.json.encode(found))
        return found


# -- results -----------------------------------------------------------------------------------------------------------


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The bandit beside the fixed plans of one workload; runs of equal place have equal seeds."""

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
        """That the figure is about: where little is known, or where capacity changes."""
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


def figures(compared: Sequence[Compared]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for each in compared:
        name = each.workload.name
        spans = {"": each.iterations, "_late": LATE} if each.iterations is EARLY else {"": ALL}
        for suffix, iterations in spans.items():
            ratios, best = each.ratios(iterations), each.best(iterations)
            value = mean_payoff(each.bandit, iterations) / mean_payoff(each.fixed[best], iterations)
            span = f"iterations {iterations[0]} to {iterations[-1]}"
            tried = f"the best of {len(fixed_plans(each.workload))} fixed plans"
            unit = f"payoff of the bandit over that of {best}, {tried}; {span}; simulated with modelled rewards"
            found[f"bandit_vs_best_fixed_{name}{suffix}"] = {
                "value": value,
                "low": min(ratios),
                "high": max(ratios),
                "unit": unit,
            }
        default = mean_payoff(each.bandit, each.iterations) / mean_payoff(each.fixed[str(DEFAULT)], each.iterations)
        unit = f"payoff of the bandit over that of {DEFAULT}, the default; simulated with modelled rewards"
        found[f"bandit_vs_default_fixed_{name}"] = {"value": default, "low": default, "high": default, "unit": unit}
        found[f"bandit_payoff_{name}"] = _spread(each.bandit, each.iterations)
        found[f"best_fixed_payoff_{name}"] = _spread(each.fixed[each.best(each.iterations)], each.iterations)
    return found


def _spread(runs: Sequence[Run], iterations: range) -> dict[str, Any]:
    by_seed = [mean_payoff([each], iterations) for each in runs]
    unit = "times the variance of fresh seeds; simulated with modelled rewards"
    return {"value": float(np.mean(by_seed)), "low": min(by_seed), "high": max(by_seed), "unit": unit}


def draw(compared: Sequence[Compared], path: Path) -> None:
    """Payoff by iteration: all fixed plans pale, the best of them and the bandit on top."""
    from matplotlib.figure import Figure

    rows = -(-len(compared) // PANELS_PER_ROW)
    columns = min(len(compared), PANELS_PER_ROW)
    picture = Figure(figsize=(4.6 * columns, 3.9 * rows), layout="constrained")
    panels = picture.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[len(compared) :]:
        panel.set_axis_off()
    for panel, each in zip(panels, compared, strict=False):
        best = each.best(each.iterations)
        for runs in each.fixed.values():
            panel.plot(ALL, _smoothed(runs), color="0.85", linewidth=0.8, zorder=1)
        panel.plot(ALL, _smoothed(each.fixed[best]), color="#4477aa", linewidth=2, label=f"best fixed: {best}")
        panel.plot(ALL, _smoothed(each.bandit), color="#cc3311", linewidth=2, label="bandit")
        panel.set_title(each.workload.title, fontsize=9)
        panel.set_xticks([1, 5, 10, 15, 20])
        panel.set_xlabel("iteration")
        panel.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)
    picture.supylabel("payoff (1: no previews), mean of 3 iterations; grey: other fixed plans", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=110)


def _smoothed(runs: Sequence[Run]) -> list[float]:
    mean = np.mean([each.payoffs for each in runs], axis=0)
    return [float(mean[max(ALL[0], number - 1) : number + 2].mean()) for number in ALL]


# -- command -----------------------------------------------------------------------------------------------------------


def fixed_plans(workload: Workload) -> list[Plan]:
    group_size = load_config(workload.recipe, list(workload.overrides)).rollout.group_size
    return [Plan(steps, seeds) for steps in STEPS for seeds in SEEDS if seeds > group_size]


def near_best(screened: Sequence[Run]) -> list[Plan]:
    payoffs = {each.plan: float(np.mean(each.payoffs)) for each in screened}
    least = NEAR_BEST * max(payoffs.values())
    return sorted(plan for plan, payoff in payoffs.items() if payoff >= least)


def all_done(jobs: Sequence[Job], executor: ProcessPoolExecutor) -> list[Run]:
    waiting = [executor.submit(job.done) for job in jobs]
    for count, _ in enumerate(as_completed(waiting), 1):
        print(f"\r{count} of {len(jobs)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return [each.result() for each in waiting]


def compare(workload: Workload, seeds: Sequence[int], folder: Path | None, executor: ProcessPoolExecutor) -> Compared:
    print(f"{workload.name}: screening, then in full", file=sys.stderr, flush=True)
    job = partial(Job, workload=workload, folder=folder)
    plans = near_best(
        all_done([job(plan=plan, seed=seeds[0], is_screening=True) for plan in fixed_plans(workload)], executor)
    )
    plans = sorted({*plans, DEFAULT})
    jobs = [job(plan=plan, seed=seed, is_screening=False) for seed in seeds for plan in (BANDIT, *plans)]
    return Compared.of(workload, all_done(jobs, executor))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--parts", type=Path, help="folder of finished parts, to go on from")
    parser.add_argument("--out", type=Path, default=Path("runs/planner"))
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    from rich.console import Console
    from rich.table import Table

    from benchmarks.lib.provenance import provenance

    with ProcessPoolExecutor(args.jobs) as executor:
        compared = [compare(WORKLOADS[name], args.seeds, args.parts, executor) for name in args.workloads]
    summary = {"benchmark": "planner", **provenance(), "seeds": args.seeds, "figures": figures(compared)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    plans = {
        each.workload.name: {plan: round(mean_payoff(runs, each.iterations), 4) for plan, runs in each.fixed.items()}
        for each in compared
    }
    args.out.with_suffix(".json").write_text(json.dumps(summary | {"fixed_payoffs": plans}, indent=1) + "\n")
    draw(compared, args.out.with_suffix(".png"))
    table = Table("figure", "value", "low", "high", "unit")
    for name, figure in summary["figures"].items():
        table.add_row(name, *(f"{figure[key]:.3f}" for key in ("value", "low", "high")), figure["unit"])
    Console().print(table)
    if args.json:
        print(json.dumps(summary))
