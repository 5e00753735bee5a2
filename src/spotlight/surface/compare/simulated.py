"""The simulated runs of a comparison: every setup with every seed; finished runs are not repeated.

Setups of one seed share numbers that do not depend on the machines. So setups without exploration have one learning
curve, and only their clocks differ.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotlight.config import RunConfig
from spotlight.control.market.traces import Trace
from spotlight.control.run_state import RunState
from spotlight.core.errors import InputError
from spotlight.core.journal import read
from spotlight.folder import RunFolder
from spotlight.sim.memory import subject_of
from spotlight.sim.numerics import Numerics
from spotlight.sim.simulate import Simulation, simulate
from spotlight.surface.compare.curve import Curve, read_curve
from spotlight.surface.simulating import Assumed, NumericsKind, numerics_for, simulated_config

ASSUMED = "assumed.txt"
"""File in a run's folder with its assumptions."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Inputs of a comparison."""

    task: str
    """The recipe that every setup is joined to."""
    setups: tuple[str, ...]
    seeds: tuple[int, ...]
    overrides: tuple[str, ...]
    assumed: Assumed
    kind: NumericsKind
    learning: str | None
    folder: Path
    """Parent folder of the runs."""

    @property
    def assumptions(self) -> str:
        """Everything that a run's curve depends on beside its settings."""
        assumed = self.assumed
        trace = "" if assumed.trace is None else Trace.load(assumed.trace).digest
        return f"profile {assumed.profile.digest}, trace {trace}, numerics {self.kind.value} {self.learning or ''}\n"

    def recipe(self, setup: str) -> str:
        return f"{self.task}+{setup}"

    def config(self, setup: str, seed: int) -> RunConfig:
        return simulated_config(self.recipe(setup), [*self.overrides, f"seed={seed}"], self.assumed)


def run_all(contest: Contest, score: str | None, progress: Callable[[str, int, int], None]) -> list[Curve]:
    """One curve per setup and seed; `progress` receives the run's name and its iterations."""
    if not contest.setups:
        raise InputError("there is no setup to compare; name some between commas, such as reserved-only,spotlight.")
    configs = {(setup, seed): contest.config(setup, seed) for setup in contest.setups for seed in contest.seeds}
    for seed in contest.seeds:
        _check_alike(contest, {setup: configs[setup, seed] for setup in contest.setups})
    curves: list[Curve] = []
    for seed in contest.seeds:
        first = configs[contest.setups[0], seed]
        with numerics_for(contest.kind, first, contest.learning) as numerics:
            for setup in contest.setups:
                folder = run_one(contest, setup, configs[setup, seed], numerics, progress)
                curves.append(read_curve(folder, contest.assumed.prices, setup, score))
    return sorted(curves, key=lambda curve: (contest.setups.index(curve.setup), curve.seed))


def run_one(
    contest: Contest, setup: str, config: RunConfig, numerics: Numerics, progress: Callable[[str, int, int], None]
) -> RunFolder:
    """Simulate the run unless it is finished already; return its folder."""
    name = f"{setup}, seed {config.seed}"
    folder = RunFolder(contest.folder / f"{setup}-seed{config.seed}")
    if folder.config.is_file():
        _check_same(contest, folder, config)
        if RunState.replay(record.event for record in read(folder.journal)).finished:
            return folder
        raise InputError(
            f"the run {folder.path} was interrupted, and a simulated run cannot be resumed; delete that folder and "
            "compare again."
        )
    folder.path.mkdir(parents=True, exist_ok=True)
    (folder.path / ASSUMED).write_text(contest.assumptions)
    simulation = Simulation(
        config=config,
        recipe=contest.recipe(setup),
        profile=contest.assumed.profile,
        numerics=numerics,
        prices=contest.assumed.prices,
        progress=lambda done: progress(name, done, config.iterations),
    )
    simulate(simulation, folder)
    return folder


def _check_alike(contest: Contest, configs: Mapping[str, RunConfig]) -> None:
    """Setups of one seed share their numbers, so the numbers must not depend on the setup."""
    first = contest.setups[0]
    for setup, config in configs.items():
        known = configs[first]
        if subject_of(config) != subject_of(known) or config.rollout.steps != known.rollout.steps:
            raise InputError(
                f"the setups '{first}' and '{setup}' differ in what is learned (model, data, reward, algorithm, train "
                "or rollout.steps), so their numbers cannot be shared; compare setups of one task."
            )


def _check_same(contest: Contest, folder: RunFolder, config: RunConfig) -> None:
    assumed = folder.path / ASSUMED
    stored = assumed.read_text() if assumed.is_file() else ""
    if folder.read_config() != config.model_dump(mode="json") or stored != contest.assumptions:
        raise InputError(
            f"the folder {folder.path} holds a run with other settings, so its curve cannot be reused; choose another "
            "--out."
        )


def named(text: str) -> Sequence[str]:
    """Split names at commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())
