"""Files, figures and the picture of learning curves; shared by `learn.py` runs and merges."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.lib.provenance import provenance
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
    """The iteration before an evaluation: what it was trained on and what the updates saw."""

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


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """Mean over seeds with the smallest and largest seed."""

    value: float | None
    low: float | None
    high: float | None
    unit: str


def threads(device: str) -> int:
    """On a CPU all cores train while no reward is scored; on a GPU the host only launches."""
    return len(os.sched_getaffinity(0)) if device == "cpu" else 1


def write(path: Path, result: SeedResult) -> None:
    stamped = msgspec.structs.replace(result, **provenance())
    path.write_bytes(msgspec.json.format(msgspec.json.encode(stamped), indent=1))


def read(path: Path) -> SeedResult:
    try:
        return msgspec.json.decode(path.read_bytes(), type=SeedResult)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is not the result of a seed ({error}); pass files that learn.py wrote.") from error


def check_same_run(path: Path, config: RunConfig) -> None:
    """A finished seed stands for this run only if it was made with the same settings."""
    changed = _differences(read(path).config, config.model_dump(mode="json"))
    if changed:
        raise InputError(
            f"{path} was made with other settings ({', '.join(changed)}), so it is not this run's result; choose "
            "another --out, or delete it to run anew."
        )


def _differences(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the settings in which two runs differ."""
    names: list[str] = []
    for key in sorted({*one, *other}):
        a, b = one.get(key), other.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            names += _differences(a, b, f"{prefix}{key}.")
        elif a != b:
            names.append(f"{prefix}{key}")
    return names


def _check_mergeable(results: Sequence[SeedResult]) -> None:
    """One family; seeds of one loss differ in nothing but the seed."""
    families = sorted({result.family for result in results})
    if len(families) > 1:
        raise InputError(f"the results are of {' and '.join(families)}; merge one family at a time.")
    for label in _labels(results):
        runs = _of(results, label)
        if len({run.seed for run in runs}) < len(runs):
            raise InputError(f"a seed of {label} is given twice; pass each file once.")
        for run in runs[1:]:
            changed = [name for name in _differences(runs[0].config, run.config) if name != "seed"]
            if changed or run.commit != runs[0].commit:
                raise InputError(
                    f"seeds {runs[0].seed} and {run.seed} of {label} differ in {', '.join(changed) or 'their commit'}; "
                    "merge runs of one setting and one commit."
                )


def present(results: Sequence[SeedResult], out: Path, as_json: bool) -> None:
    """Print the table, write OUT.json and OUT.png."""
    _check_mergeable(results)
    figures: dict[str, Figure] = {}
    for label in _labels(results):
        figures |= _figures(_of(results, label))
    first = results[0]
    summary = {
        "benchmark": "learn",
        "commit": first.commit,
        "date": first.date,
        "hardware": first.hardware,
        "seeds": sorted({result.seed for result in results}),
        "figures": msgspec.to_builtins(figures),
        "runs": msgspec.to_builtins(list(results)),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")
    draw_curves(results, out.with_suffix(".png"))
    table = Table("figure", "mean", "lowest seed", "highest seed", "unit", title=f"{first.hardware}, {first.commit}")
    for name, figure in figures.items():
        table.add_row(name, *(_shown(x) for x in (figure.value, figure.low, figure.high)), figure.unit)
    Console().print(table)
    Console(stderr=True).print(f"curve {out.with_suffix('.png')}, figures {out.with_suffix('.json')}", soft_wrap=True)
    if as_json:
        print(json.dumps({key: value for key, value in summary.items() if key != "runs"}))


def _labels(results: Sequence[SeedResult]) -> list[str]:
    return sorted({result.label for result in results})


def _of(results: Sequence[SeedResult], label: str) -> list[SeedResult]:
    return sorted((result for result in results if result.label == label), key=lambda result: result.seed)


def _shown(value: float | None) -> str:
    return "not reached" if value is None else f"{value:.3f}"


def _figures(runs: Sequence[SeedResult]) -> dict[str, Figure]:
    """All figures of one loss."""
    loss = runs[0].loss
    first, last = [run.points[0] for run in runs], [run.points[-1] for run in runs]
    figures = {
        f"{loss}_base_reward": _over_seeds([point.reward for point in first], "reward"),
        f"{loss}_final_reward": _over_seeds([point.reward for point in last], "reward"),
        f"{loss}_iterations": _over_seeds([float(point.iteration) for point in last], "iterations"),
        f"{loss}_iterations_to_{TARGET}": _over_seeds([_first_reaching(run) for run in runs], "iterations"),
        f"{loss}_seconds": _over_seeds([point.seconds for point in last], "s"),
    }
    if all(run.points[0].strict is not None for run in runs):
        figures[f"{loss}_base_strict"] = _over_seeds([point.strict for point in first], "share")
        figures[f"{loss}_final_strict"] = _over_seeds([point.strict for point in last], "share")
        gains = [float(b.strict or 0) - float(a.strict or 0) for a, b in zip(first, last, strict=True)]
        figures[f"{loss}_gain"] = _over_seeds(gains, "strict score")
    judged = [[point.judge for point in run.points if point.judge is not None] for run in runs]
    if all(len(values) >= 2 for values in judged):
        figures[f"{loss}_base_judge"] = _over_seeds([values[0] for values in judged], "share")
        figures[f"{loss}_final_judge"] = _over_seeds([values[-1] for values in judged], "share")
    return figures


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _first_reaching(run: SeedResult) -> float | None:
    return next((float(point.iteration) for point in run.points if point.reward >= TARGET), None)


def _over_seeds(values: Sequence[float | None], unit: str) -> Figure:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return Figure(value=None, low=min(known, default=None), high=None, unit=unit)
    return Figure(value=float(np.mean(known)), low=min(known), high=max(known), unit=unit)


def draw_curves(results: Sequence[SeedResult], path: Path) -> None:
    """Held-out reward and strict score against iterations: a line per seed, their mean in bold."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharex=True)
    for colour, label in zip(("#0072b2", "#d55e00", "#009e73", "#cc79a7"), _labels(results), strict=False):
        runs = _of(results, label)
        shortest = min(len(run.points) for run in runs)
        iterations = [point.iteration for point in runs[0].points[:shortest]]
        for axis, field in zip(axes, ("reward", "strict"), strict=True):
            values = [[getattr(point, field) for point in run.points[:shortest]] for run in runs]
            curves = np.array(values, dtype=float)
            axis.plot(iterations, curves.mean(0), color=colour, linewidth=2, label=f"{label} ({_seeds(len(runs))})")
            axis.fill_between(iterations, curves.min(0), curves.max(0), color=colour, alpha=0.2, linewidth=0)
        judged = [(p.iteration, p.judge) for p in runs[0].points if p.judge is not None]
        if judged and runs[0].family != "scenes":
            axes[1].plot(*zip(*judged, strict=True), "o--", color=colour, markersize=4, alpha=0.8,
                         label=f"{label}, second recogniser")  # fmt: skip
    for axis, title in zip(axes, ("held-out reward (graded)", "held-out strict score"), strict=True):
        axis.set_title(title)
        axis.set_xlabel("iteration")
        axis.grid(alpha=0.3)
        axis.set_ylim(top=1.0)
        axis.legend(frameon=False, fontsize=8, loc="lower right")
    figure.suptitle(f"band: lowest to highest seed; {results[0].hardware}", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
