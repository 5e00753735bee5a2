"""The bandit against every fixed plan of a sweep, in virtual time.

python benchmarks/planner.py [--workloads words scenes large changing] [--seeds 0 1] [--jobs 2] [--parts FOLDER]
                             [--json] [--out docs/results/planner]

The payoff of an iteration is what its groups were worth in the learning model: the variance of their rewards over that
of unselected groups, so 1 without previews. Fixed plans preview `seeds` of every prompt with `steps` and are cut off
when training ends, as any plan is. Of one step count, plans of more seeds than ever finish are the same plan, so the
sweep leaves them out. The best fixed plan is the one with the largest mean payoff over all seeds, known only
afterwards; the bandit starts without knowing anything.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
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
EARLY, LATE, ALL = range(1, 11), range(11, ITERATIONS), range(1, ITERATIONS)
SEEDS = (24, 32, 48, 64, 96, 128, 192)
"""Of a fixed plan; as many as a group keeps, or fewer, select nothing."""
STEPS = (2, 3, 4, 5, 6, 8, 10)
SPOT = 8


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
            title="words, 512: 8, then 3, then 8 spot slots",
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
    for seeds in SEEDS:
        if seeds > group_size:
            found.append(run(workload, Plan(steps, seeds), seed))
            if found[-1].is_always_cut:
                break
    return found


def part(workload: Workload, steps: int, seed: int, folder: Path | None) -> list[Run]:
    """The sweep of one step count, or the bandit where that is 0; from the folder if it is there already."""
    path = folder / f"{workload.name}-{steps}-{seed}.json" if folder else None
    if path and path.exists():
        return msgspec.json.decode(path.read_bytes(), type=list[Run])
    runs = sweep(workload, steps, seed) if steps else [run(workload, BANDIT, seed)]
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(runs))
    return runs


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
            bandit=[_standing(mine, seed, BANDIT) for seed in seeds],
            fixed={str(plan): [_standing(mine, seed, plan) for seed in seeds] for plan in plans},
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


def _standing(runs: Sequence[Run], seed: int, plan: Plan) -> Run:
    """The run of that plan; where the sweep of this seed ended before it, the last one, which is the same."""
    alike = [each for each in runs if each.seed == seed and each.plan.steps == plan.steps and each.plan <= plan]
    return max(alike, key=lambda each: each.plan)


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
            unit = f"payoff of the bandit over that of {best}, the best of {len(each.fixed)}; {span}; co-simulated"
            found[f"bandit_vs_best_fixed_{name}{suffix}"] = {
                "value": value,
                "low": min(ratios),
                "high": max(ratios),
                "unit": unit,
            }
        found[f"bandit_payoff_{name}"] = _spread(each.bandit, each.iterations)
        found[f"best_fixed_payoff_{name}"] = _spread(each.fixed[each.best(each.iterations)], each.iterations)
    return found


def _spread(runs: Sequence[Run], iterations: range) -> dict[str, Any]:
    by_seed = [mean_payoff([each], iterations) for each in runs]
    unit = "times the variance of fresh seeds; co-simulated"
    return {"value": float(np.mean(by_seed)), "low": min(by_seed), "high": max(by_seed), "unit": unit}


def draw(compared: Sequence[Compared], path: Path) -> None:
    """Payoff by iteration: all fixed plans pale, the best of them and the bandit on top."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(4.4 * len(compared), 3.8), layout="constrained")
    panels = picture.subplots(1, len(compared), squeeze=False)[0]
    for panel, each in zip(panels, compared, strict=True):
        best = each.best(each.iterations)
        for runs in each.fixed.values():
            panel.plot(ALL, _smoothed(runs), color="0.85", linewidth=0.8, zorder=1)
        panel.plot(ALL, _smoothed(each.fixed[best]), color="#4477aa", linewidth=2, label=f"best fixed: {best}")
        panel.plot(ALL, _smoothed(each.bandit), color="#cc3311", linewidth=2, label="bandit")
        panel.set_title(each.workload.title, fontsize=9)
        panel.set_xlabel("iteration")
        panel.legend(fontsize=8, loc="lower right")
    panels[0].set_ylabel("payoff (1: no previews), mean of 3 iterations")
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=110)


def _smoothed(runs: Sequence[Run]) -> list[float]:
    mean = np.mean([each.payoffs for each in runs], axis=0)
    return [float(mean[max(ALL[0], number - 1) : number + 2].mean()) for number in ALL]


# -- command -----------------------------------------------------------------------------------------------------------


def all_runs(names: Sequence[str], seeds: Sequence[int], jobs: int, folder: Path | None) -> list[Run]:
    wanted = [(WORKLOADS[name], steps, seed) for name in names for seed in seeds for steps in (0, *STEPS)]
    found: list[Run] = []
    with ProcessPoolExecutor(jobs) as executor:
        waiting = {executor.submit(part, *each, folder): each for each in wanted}
        for done in as_completed(waiting):
            workload, steps, seed = waiting[done]
            found += done.result()
            kind = f"{steps} steps" if steps else "bandit"
            print(f"{workload.name}, {kind}, seed {seed}: {len(done.result())} runs", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--parts", type=Path, help="folder of finished parts, to go on from")
    parser.add_argument("--out", type=Path, default=Path("runs/planner"))
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    from provenance import provenance
    from rich.console import Console
    from rich.table import Table

    runs = all_runs(args.workloads, args.seeds, args.jobs, args.parts)
    compared = [Compared.of(WORKLOADS[name], runs) for name in args.workloads]
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


if __name__ == "__main__":
    main()
