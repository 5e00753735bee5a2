"""Clocks of short simulated runs, one for every plan, profile and number of spot slots."""

import shutil
from argparse import Namespace
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.headline.run import contest_of
from benchmarks.headline.setups import PROFILES, STEADY
from benchmarks.lib import merge
from benchmarks.lib.provenance import provenance
from spotlight.config import RunConfig
from spotlight.core import journal
from spotlight.core.events import IterationDone
from spotlight.surface.compare.simulated import Contest, run_one
from spotlight.surface.simulating import NumericsKind, numerics_for

OURS = "spotlight-fixed"
SEED = 100
"""Seeds from here on were used for nothing else; clocks hardly depend on them."""
SHORT = ("iterations=5", "eval.every=3", "output.checkpoint_every=100")
"""Iterations 1 and 2 are like all later ones; the evaluation after three is drawn in iteration 3, and the last one
previews nothing."""


class SearchedPlan(NamedTuple):
    """Previews of a fixed plan; scouts are those of candidates."""

    seeds: int
    steps: int
    candidates: float = 1.0
    scouts: int = 0
    precision: str = "exact"

    @classmethod
    def of(cls, config: RunConfig) -> "SearchedPlan":
        found = config.explore
        return cls(found.seeds, found.steps, found.candidates, found.scouts, found.precision.value)

    @property
    def name(self) -> str:
        chosen = f" of {self.candidates:g} candidates" if self.candidates > 1 else ""
        scouts = f" by {self.scouts} scouts" if self.scouts else ""
        return f"{self.seeds}x{self.steps}{chosen}{scouts}{' in fp8' if self.precision == 'fp8' else ''}"

    @property
    def settings(self) -> tuple[str, ...]:
        return tuple(f"explore.{name}={value}" for name, value in self._asdict().items())


EARLIER = {"scenes": SearchedPlan(24, 4), "words-large": SearchedPlan(16, 5, 2.0, 4)}
"""Plans to compare with: chosen with real numbers, and with the profiles of eager models (benchmarks/batches/)."""
GRID = {
    "scenes": (
        *(SearchedPlan(seeds, steps) for steps in (4, 5, 6) for seeds in (8, 12, 16, 20, 24)),
        *(SearchedPlan(12, 8), SearchedPlan(16, 8), SearchedPlan(16, 5, 1.5, 6), SearchedPlan(16, 5, 2.0, 4)),
        *(SearchedPlan(seeds, 5, precision="fp8") for seeds in (12, 16, 20)),
        *(SearchedPlan(16, 4, precision="fp8"), SearchedPlan(16, 6, precision="fp8")),
    ),
    "words-large": (
        *(SearchedPlan(seeds, steps, 2.0, 4) for steps in (4, 5, 6) for seeds in (8, 12, 16, 20, 24)),
        *(SearchedPlan(12, 8, 2.0, 4), SearchedPlan(16, 8, 2.0, 4), SearchedPlan(16, 5), SearchedPlan(12, 6)),
        *(SearchedPlan(12, 6, 1.5, 4), SearchedPlan(16, 5, 3.0, 4)),
        *(SearchedPlan(seeds, steps, 2.0, 4, "fp8") for steps in (5, 6) for seeds in (12, 16)),
    ),
}
"""Prompts and updates are not searched: the learning model knows the variance of groups only."""


class PlanClock(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one plan on the machines of one profile, all spot slots held."""

    family: str
    profile: str
    spot: int
    plan: str
    start_s: float
    """Beyond the first iteration: start of the machines and the first evaluation."""
    iteration_s: float
    """Without an evaluation."""
    evaluation_s: float
    """By which an evaluation makes an iteration longer."""
    commit: str
    date: str
    hardware: str

    def hours(self, iterations: float, every: int) -> float:
        """Hours of this many iterations, evaluated after every `every`."""
        return (self.start_s + iterations * (self.iteration_s + self.evaluation_s / every)) / 3600


class ClockTask(NamedTuple):
    """One short run."""

    family: str
    profile: str
    spot: int
    plan: SearchedPlan
    folder: Path

    @property
    def path(self) -> Path:
        plan = self.plan.name.replace(" ", "-")
        return self.folder / f"{self.family}-{self.profile}-{self.spot}-{plan}.json"


def tasks_of(families: Sequence[str], spots: Sequence[int], folder: Path) -> list[ClockTask]:
    """Short runs of all plans, the chosen and the earlier one among them."""
    return [
        ClockTask(family, profile, spot, plan, folder)
        for family, spot, profile in product(families, spots, PROFILES)
        for plan in plans_of(family)
    ]


def plans_of(family: str) -> list[SearchedPlan]:
    return list(dict.fromkeys((chosen_plan(family), EARLIER[family], *GRID[family])))


def chosen_plan(family: str) -> SearchedPlan:
    """The plan of the headline."""
    return SearchedPlan.of(contest(family, OURS, ()).config(OURS, SEED))


def contest(family: str, setup: str, changes: Sequence[str], profile: str = PROFILES[0], out: Path = Path()) -> Contest:
    args = Namespace(
        family=family, same_batches=False, device="cpu", overrides=list(changes), numerics="model", out=out
    )
    return contest_of(args, profile, STEADY, setup, SEED)


def run_task(task: ClockTask) -> None:
    """Run it and write its clock, unless that exists."""
    if task.path.exists():
        return
    changes = (*SHORT, *task.plan.settings, f"cluster.spot={task.spot}")
    scratch = task.path.with_suffix(".run")
    shutil.rmtree(scratch, ignore_errors=True)
    made = contest(task.family, OURS, changes, task.profile, scratch)
    config = made.config(OURS, SEED)
    with numerics_for(NumericsKind.MODEL, config, made.learning) as numerics:
        folder = run_one(made, OURS, config, numerics, lambda *_: None)
    ends = [record.at for record in journal.read(folder.journal) if isinstance(record.event, IterationDone)]
    began = next(iter(journal.read(folder.journal))).at
    iteration_s = (ends[2] - ends[0]) / 2
    clock = PlanClock(
        family=task.family,
        profile=task.profile,
        spot=task.spot,
        plan=task.plan.name,
        start_s=ends[0] - began - iteration_s,
        iteration_s=iteration_s,
        evaluation_s=ends[3] - ends[2] - iteration_s,
        **provenance(),
    )
    merge.write(task.path, clock)
    shutil.rmtree(scratch)
