"""The picture of rankings by stale weights: a column per experiment, captured variance above, Spearman below."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.lib.plot import save
from benchmarks.staleness.figures import STAGES, Checkpoint, Look, StalenessResult, experiments, of_experiment

COLOURS = {"early": "#0072b2", "middle": "#009e73", "late": "#d55e00"}
ROWS = {"captured_variance": "captured variance", "spearman": "Spearman, within prompts"}
LINES = {Look.FULL: "-", Look.FEW: "--"}


def draw(results: Sequence[StalenessResult], path: Path) -> None:
    names = experiments(results)
    picture = Figure(figsize=(max(4.2 * len(names), 8), 7.2))
    axes = picture.subplots(len(ROWS), len(names), squeeze=False, sharex=True, sharey="row")
    for column, name in enumerate(names):
        runs = of_experiment(results, name)
        for row, (figure_name, label) in enumerate(ROWS.items()):
            axis = axes[row][column]
            _panel(axis, runs, figure_name)
            if column == 0:
                axis.set_ylabel(label)
        axes[0][column].set_title(f"{name} ({len(runs)} {'seed' if len(runs) == 1 else 'seeds'})", fontsize=10)
        axes[-1][column].set_xlabel("age of the weights that rank, in iterations")
    picture.legend(handles=_legend(results), loc="lower center", ncols=4, frameon=False, fontsize=8)
    picture.suptitle(f"line: mean, band: lowest to highest seed; {results[0].hardware}", fontsize=9)
    save(picture, path, rect=(0, 0.07, 1, 1))


def _panel(axis: Any, runs: Sequence[StalenessResult], name: str) -> None:
    lags = (0, *runs[0].settings["lags"])
    places = np.arange(len(lags))
    for number, checkpoint in enumerate(runs[0].checkpoints):
        stage = runs[0].stage(checkpoint)
        seeds = [run.checkpoints[number] for run in runs]
        for look, line in LINES.items():
            values = np.array([[_value(point, look, lag, name) for lag in lags] for point in seeds])
            axis.plot(places, values.mean(0), line, marker="o", markersize=3, color=COLOURS[stage], linewidth=1.6)
            axis.fill_between(places, values.min(0), values.max(0), color=COLOURS[stage], alpha=0.1, linewidth=0)
    points = [point for run in runs for point in run.checkpoints]
    ceiling = [_value(point, Look.FULL, 0, name) for point in points]
    floor = [getattr(point.random, name) for point in points if point.random.spearman is not None]
    axis.axhline(float(np.mean(ceiling)), color="#333333", linestyle=":", linewidth=1.2)
    axis.axhline(float(np.mean(floor)) if floor else 0.0, color="#999999", linestyle=":", linewidth=1.2)
    axis.set_xticks(places, [str(lag) for lag in lags])
    axis.set_ylim(0.0, 1.05)
    axis.grid(alpha=0.3)


def _value(point: Checkpoint, look: Look, lag: int, name: str) -> float:
    value = getattr(point.at(look, lag), name)
    return float("nan") if value is None else float(value)


def _legend(results: Sequence[StalenessResult]) -> list[Any]:
    few = results[0].settings["preview_steps"]
    at = results[0].settings["checkpoints"]
    stages = [
        Line2D([], [], color=COLOURS[stage], label=f"{stage} (iteration {iteration})")
        for stage, iteration in zip(STAGES, at, strict=True)
    ]
    return [
        *stages,
        Line2D([], [], color="#333333", linestyle="-", label="all steps, new window noise"),
        Line2D([], [], color="#333333", linestyle="--", label=f"preview of {few} steps"),
        Line2D([], [], color="#333333", linestyle=":", label="same weights, all steps"),
        Line2D([], [], color="#999999", linestyle=":", label="random choice"),
    ]
