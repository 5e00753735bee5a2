"""Learning curves of single seeds, and the figures over seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.lib import merge
from benchmarks.lib.figures import Figure
from benchmarks.lib.report import publish, summary_of
from spotlight.config import RunConfig
from spotlight.core.errors import InputError

TARGET = 0.96
"""The held-out reward whose first crossing is reported."""


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One held-out evaluation; `low` and `high` are its 95 % interval over prompts."""

    iteration: int
    seconds: float
    reward: float
    low: float
    high: float
    strict: float | None
    judge: float | None = None
    trained: "Diagnostics | None" = None


class Diagnostics(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the iteration before an evaluation: rollouts and updates."""

    reward: float
    """Mean over the rollouts, on training prompts."""
    zero_variance_groups: int
    grad_norm: float
    first_update: dict[str, float]
    """Figures of the first update; Flow-GRPO's ratio deviation there shows whether rollout and training agree."""
    last_update: dict[str, float]


class SeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one seed."""

    family: str
    loss: str
    seed: int
    config: dict[str, Any]
    points: list[CurvePoint]
    commit: str = ""
    date: str = ""
    hardware: str = ""

    @property
    def label(self) -> str:
        return f"{self.family}, {self.loss}"


def read(path: Path) -> SeedResult:
    return merge.read(path, SeedResult, "learn")


def check_same_run(path: Path, config: RunConfig) -> None:
    merge.check_same_settings(path, read(path).config, config.model_dump(mode="json"))


def present(results: Sequence[SeedResult], out: Path, as_json: bool) -> None:
    """Print the table, write OUT.json and OUT.png."""
    from benchmarks.learn.plot import draw

    _check_mergeable(results)
    figures: dict[str, Figure] = {}
    for label in labels(results):
        figures |= _figures(of_label(results, label))
    draw(results, out.with_suffix(".png"))
    summary = summary_of("learn", figures, sorted({result.seed for result in results}), merge.stamp_of(results))
    publish(summary, out, as_json, runs=list(results))


def _check_mergeable(results: Sequence[SeedResult]) -> None:
    """Require one family, and runs of one loss that differ only in the seed."""
    families = sorted({result.family for result in results})
    if len(families) > 1:
        raise InputError(f"the results are of {' and '.join(families)}; merge one family at a time.")
    for label in labels(results):
        runs = of_label(results, label)
        merge.check_given_once([run.seed for run in runs], label)
        for run in runs[1:]:
            merge.check_one_experiment(runs[0], run, merge.differences(runs[0].config, run.config), label)


def labels(results: Sequence[SeedResult]) -> list[str]:
    return sorted({result.label for result in results})


def of_label(results: Sequence[SeedResult], label: str) -> list[SeedResult]:
    return sorted((result for result in results if result.label == label), key=lambda result: result.seed)


def _figures(runs: Sequence[SeedResult]) -> dict[str, Figure]:
    """All figures of one loss."""
    loss = runs[0].loss
    first, last = [run.points[0] for run in runs], [run.points[-1] for run in runs]
    figures = {
        f"{loss}_base_reward": Figure.mean([point.reward for point in first], "reward"),
        f"{loss}_final_reward": Figure.mean([point.reward for point in last], "reward"),
        f"{loss}_iterations": Figure.mean([float(point.iteration) for point in last], "iterations"),
        f"{loss}_iterations_to_{TARGET}": Figure.mean([_first_reaching(run) for run in runs], "iterations"),
        f"{loss}_seconds": Figure.mean([point.seconds for point in last], "s"),
    }
    if all(run.points[0].strict is not None for run in runs):
        figures[f"{loss}_base_strict"] = Figure.mean([point.strict for point in first], "share")
        figures[f"{loss}_final_strict"] = Figure.mean([point.strict for point in last], "share")
        gains = [float(b.strict or 0) - float(a.strict or 0) for a, b in zip(first, last, strict=True)]
        figures[f"{loss}_gain"] = Figure.mean(gains, "strict score")
    judged = [[point.judge for point in run.points if point.judge is not None] for run in runs]
    if all(len(values) >= 2 for values in judged):
        figures[f"{loss}_base_judge"] = Figure.mean([values[0] for values in judged], "share")
        figures[f"{loss}_final_judge"] = Figure.mean([values[-1] for values in judged], "share")
    return figures


def _first_reaching(run: SeedResult) -> float | None:
    return next((float(point.iteration) for point in run.points if point.reward >= TARGET), None)
