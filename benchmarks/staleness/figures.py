"""Rankings by stale weights of single seeds, and the figures over seeds.

Figures of a lag are means over the checkpoints, then over seeds with the lowest and highest seed. `captured` is the
captured variance as a share of what the same weights capture by the same kind of look, the ceiling; it separates
staleness from what few steps and new noise lose. `captured_variance` is the share of the best choice by exact rewards.
Names: words_nft_lag1_spearman ranks with all steps, words_nft_lag1_few_spearman with the steps of a preview.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from pydantic import model_validator
from rich.table import Table

from benchmarks.lib import merge
from benchmarks.lib.figures import Figure
from benchmarks.lib.report import publish, summary_of
from benchmarks.staleness.statistics import AuditedSeed
from spotlight.config import RunConfig
from spotlight.core.errors import ConfigError
from spotlight.core.section import Section

STAGES = ("early", "middle", "late")


class Look(StrEnum):
    """Ways to draw a candidate."""

    EXACT = "exact"
    """As it would be rolled out."""
    FULL = "full"
    """With all steps and the rollout's sampler; noise inside an SDE window is new."""
    FEW = "few"
    """With the few ODE steps of a preview."""


UNITS = {
    "spearman": "rank correlation within prompts",
    "kendall": "tau-b within prompts",
    "hit_rate": "share of the highest and lowest seeds that are right",
    "captured_variance": "of the best choice by exact rewards",
}

COLUMNS = (*UNITS, "captured")


class StalenessSettings(Section):
    """Candidates, checkpoints and lags."""

    checkpoints: tuple[int, ...]
    """Iterations after which seeds are ranked: early, middle, late."""
    lags: tuple[int, ...]
    """Ages of the previews' weights, in iterations."""
    prompts: int
    """Prompts per checkpoint, those that the run would train on next."""
    candidates: int
    """Seeds ranked per prompt."""
    kept: int
    """Seeds that selection keeps per prompt: the recipe's group size."""
    preview_steps: int
    """Denoising steps of a few-step preview."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for option, values in (("checkpoints", self.checkpoints), ("lags", self.lags)):
            if list(values) != sorted(set(values)) or values[0] < 1:
                raise ConfigError(
                    f"--{option} are {_listed(values)}; give numbers from 1 on, each larger than the last."
                )
        if len(self.checkpoints) != len(STAGES):
            raise ConfigError(
                f"--checkpoints are {_listed(self.checkpoints)}, but figures are of an early, a middle and a late one; "
                "give three."
            )
        if self.lags[-1] > self.checkpoints[0]:
            raise ConfigError(
                f"--lags go back {self.lags[-1]} iterations, but the first checkpoint is at {self.checkpoints[0]} and "
                "there are no weights before the base; start later or look back less."
            )
        if self.candidates <= self.kept:
            raise ConfigError(
                f"--candidates is {self.candidates}, but {self.kept} seeds of each prompt are kept, so nothing would "
                "be selected; rank more than rollout.group_size."
            )
        for option, value in (("prompts", self.prompts), ("preview-steps", self.preview_steps)):
            if value < 1:
                raise ConfigError(f"--{option} is {value}, which is below 1; use 1 or more.")
        return self

    @property
    def versions(self) -> frozenset[int]:
        """Versions whose weights some checkpoint draws with."""
        return frozenset(checkpoint - lag for checkpoint in self.checkpoints for lag in (0, *self.lags))


class Lagged(msgspec.Struct, frozen=True, kw_only=True):
    """Ranking by weights of one age and one look; lag 0 of either look is a ceiling."""

    look: Look
    lag: int
    ranking: AuditedSeed


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """All rankings of one checkpoint."""

    iteration: int
    reward: float
    """Mean exact reward of the candidates."""
    varied_prompts: int
    """Prompts whose exact rewards vary; correlations and hit rates are over these."""
    random: AuditedSeed
    """Expected ranking of a random choice: the floor."""
    lagged: tuple[Lagged, ...]

    def at(self, look: Look, lag: int) -> AuditedSeed:
        return next(entry.ranking for entry in self.lagged if (entry.look, entry.lag) == (look, lag))

    def captured(self, look: Look, lag: int) -> float | None:
        """Captured variance as a share of what the same weights capture by the same look."""
        value, ceiling = self.at(look, lag).captured_variance, self.at(look, 0).captured_variance
        return value / ceiling if value is not None and ceiling else None


class StalenessResult(msgspec.Struct, frozen=True, kw_only=True):
    """One seed of one experiment; an interrupted one has fewer checkpoints than its settings."""

    family: str
    loss: str
    seed: int
    config: dict[str, Any]
    settings: dict[str, Any]
    checkpoints: tuple[Checkpoint, ...]
    seconds: float
    commit: str = ""
    date: str = ""
    hardware: str = ""

    @property
    def experiment(self) -> str:
        return f"{self.family}, {self.loss}"

    @property
    def prefix(self) -> str:
        """Prefix of its figures: `words` for either size of words."""
        return f"{self.family.split('-')[0]}_{self.loss}"

    def stage(self, checkpoint: Checkpoint) -> str:
        return STAGES[self.settings["checkpoints"].index(checkpoint.iteration)]


def read(path: Path) -> StalenessResult:
    return merge.read(path, StalenessResult, "staleness")


def check_same_run(path: Path, config: RunConfig, settings: StalenessSettings) -> None:
    found = read(path)
    wanted = {**config.model_dump(mode="json"), "looks": settings.model_dump(mode="json")}
    merge.check_same_settings(path, {**found.config, "looks": found.settings}, wanted)


def check_mergeable(results: Sequence[StalenessResult]) -> None:
    """Runs of an experiment differ only in the seed, none comes twice, and figure names do not clash."""
    for experiment in experiments(results):
        runs = of_experiment(results, experiment)
        merge.check_given_once([run.seed for run in runs], experiment)
        first = {**runs[0].config, "looks": runs[0].settings}
        for run in runs[1:]:
            changed = merge.differences(first, {**run.config, "looks": run.settings})
            merge.check_one_experiment(runs[0], run, changed, experiment)
    merge.check_prefixes((run.prefix, run.family) for run in results)


def experiments(results: Sequence[StalenessResult]) -> list[str]:
    return sorted({run.experiment for run in results})


def of_experiment(results: Sequence[StalenessResult], experiment: str) -> list[StalenessResult]:
    """Runs of the experiment by seed, each with the checkpoints that all of them have."""
    runs = sorted((run for run in results if run.experiment == experiment), key=lambda run: run.seed)
    shared = set.intersection(*({point.iteration for point in run.checkpoints} for run in runs))
    return [
        msgspec.structs.replace(run, checkpoints=tuple(p for p in run.checkpoints if p.iteration in shared))
        for run in runs
    ]


def present(results: Sequence[StalenessResult], out: Path, as_json: bool) -> None:
    """Print the table, write OUT.json and OUT.png."""
    from benchmarks.staleness.plot import draw

    check_mergeable(results)
    figures: dict[str, Figure] = {}
    for experiment in experiments(results):
        figures |= figures_of(of_experiment(results, experiment))
    draw(results, out.with_suffix(".png"))
    summary = summary_of("staleness", figures, sorted({run.seed for run in results}), merge.stamp_of(results))
    table = table_of(figures, f"{summary['hardware']}, {summary['commit']}")
    publish(summary, out, as_json, table, runs=list(results))


def table_of(figures: Mapping[str, Figure], title: str) -> Table:
    """A row per experiment, look and lag; mean over seeds and, in brackets, the lowest and highest seed."""
    table = Table(title=title)
    table.add_column("weights", no_wrap=True)
    rows: dict[str, dict[str, str]] = {}
    for name, figure in figures.items():
        column = next((column for column in COLUMNS if name.endswith(f"_{column}")), None)
        if column and figure.value is not None:
            shown = f"{figure.value:.3f} ({figure.low:.2f} to {figure.high:.2f})"
            rows.setdefault(name.removesuffix(f"_{column}"), {})[column] = shown
    for column in COLUMNS:
        table.add_column(column)
    for name, cells in rows.items():
        table.add_row(name, *(cells.get(column, "-") for column in COLUMNS))
    return table


def figures_of(runs: Sequence[StalenessResult]) -> dict[str, Figure]:
    """All figures of one experiment, whose runs have the same checkpoints."""
    first = runs[0]
    figures: dict[str, Figure] = {}
    points = [run.checkpoints for run in runs]
    steps = {Look.FULL: "all steps", Look.FEW: f"{first.settings['preview_steps']} steps"}
    for look, infix in ((Look.FULL, ""), (Look.FEW, "few_")):
        for lag in (0, *first.settings["lags"]):
            start = f"{first.prefix}_lag{lag}_{infix}"
            for name, unit in UNITS.items():
                values = [[getattr(point.at(look, lag), name) for point in seed] for seed in points]
                figures[start + name] = over_checkpoints(values, f"{unit}; {steps[look]}")
            if lag:
                shares = [[point.captured(look, lag) for point in seed] for seed in points]
                figures[start + "captured"] = over_checkpoints(shares, f"of the same weights' capture; {steps[look]}")
    for name in ("hit_rate", "captured_variance"):
        values = [[getattr(point.random, name) for point in seed] for seed in points]
        figures[f"{first.prefix}_random_{name}"] = over_checkpoints(values, UNITS[name])
    return figures | by_stage(runs)


def by_stage(runs: Sequence[StalenessResult]) -> dict[str, Figure]:
    """The shortest lag checkpoint by checkpoint: whether the premise holds throughout."""
    figures: dict[str, Figure] = {}
    lag = runs[0].settings["lags"][0]
    for number, checkpoint in enumerate(runs[0].checkpoints):
        at = f"iteration {checkpoint.iteration}"
        name = f"{runs[0].prefix}_lag{lag}"
        stage = runs[0].stage(checkpoint)
        seeds = [run.checkpoints[number] for run in runs]
        for look, infix in ((Look.FULL, ""), (Look.FEW, "few_")):
            spearman = [[point.at(look, lag).spearman] for point in seeds]
            captured = [[point.captured(look, lag)] for point in seeds]
            figures[f"{name}_{infix}spearman_{stage}"] = over_checkpoints(spearman, at)
            figures[f"{name}_{infix}captured_{stage}"] = over_checkpoints(captured, at)
    return figures


def over_checkpoints(values_by_seed: Sequence[Sequence[float | None]], unit: str) -> Figure:
    """Mean over each seed's checkpoints, then over seeds; checkpoints without contrast are left out."""
    known = [[value for value in values if value is not None] for values in values_by_seed]
    return Figure.mean([float(np.mean(values)) for values in known if values], unit)


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) or "none"
