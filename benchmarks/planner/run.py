"""Simulated runs of fixed plans and of the bandit: screened first, then the near best in full."""

import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from spotlight.config import load_config
from spotlight.control.explore.config import ExploreConfig
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Profile
from spotlight.core.events import StepCommitted
from spotlight.core.journal import read
from spotlight.folder import RunFolder
from spotlight.sim.learning import LearningModel, ModelNumerics
from spotlight.sim.simulate import Simulation, simulate, simulated

ITERATIONS = 21
"""Iteration 0 has no previews; in 1 to 10 the bandit must have learned."""
SCREENED = 6
"""Iterations of a screening run."""
NEAR_BEST = 0.9
"""Share of the best screened payoff above which a plan is run in full."""
SEEDS = (24, 32, 48, 64, 96, 128, 192)
"""Seeds per prompt of fixed plans; all above the size of a group, because fewer select nothing."""
STEPS = (2, 3, 4, 5, 6, 8, 10)
SPOT = 8


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A recipe, its hardware and the settings of its simulation."""

    name: str
    title: str
    recipe: str
    profile: str
    learning: str
    overrides: tuple[str, ...] = ()
    spot: tuple[tuple[float, int], ...] = ((0.0, SPOT),)
    """Start times in seconds, each with the number of spot slots from then on."""

    def trace(self) -> str:
        """The trace; losses are announced 30 s before."""
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
    """The payoffs of one simulated run."""

    workload: str
    plan: Plan
    seed: int
    payoffs: tuple[float, ...]
    """Payoffs by iteration."""


def run(workload: Workload, plan: Plan, seed: int, iterations: int = ITERATIONS) -> Run:
    """Simulate one whole run."""
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
    """Short runs at every number of spot slots of the workload, as one run."""
    counts = sorted({count for _, count in workload.spot})
    steady = [msgspec.structs.replace(workload, spot=((0.0, count),)) for count in counts]
    runs = [run(each, plan, seed, SCREENED) for each in steady]
    # The first iteration of each has no previews.
    payoffs = tuple(payoff for each in runs for payoff in each.payoffs[1:])
    return Run(workload=workload.name, plan=plan, seed=seed, payoffs=payoffs)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation, or a screening."""

    workload: Workload
    plan: Plan
    seed: int
    is_screening: bool
    folder: Path | None
    """Folder of finished jobs."""

    def done(self) -> Run:
        """The run, read from the folder if it exists."""
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


def runs_of(workload: Workload, seeds: Sequence[int], folder: Path | None, executor: ProcessPoolExecutor) -> list[Run]:
    """Runs of the bandit and of the fixed plans that pass the screening, with every seed."""
    print(f"{workload.name}: screening, then in full", file=sys.stderr, flush=True)
    job = partial(Job, workload=workload, folder=folder)
    plans = near_best(
        all_done([job(plan=plan, seed=seeds[0], is_screening=True) for plan in fixed_plans(workload)], executor)
    )
    plans = sorted({*plans, DEFAULT})
    jobs = [job(plan=plan, seed=seed, is_screening=False) for seed in seeds for plan in (BANDIT, *plans)]
    return all_done(jobs, executor)
