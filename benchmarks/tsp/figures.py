"""Files, figures and the table of `tsp.py`."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.learn.figures import Figure
from spotlight.compute.train.config import BatchesOver


@dataclass(frozen=True)
class Arm:
    """So many rows in one forward and backward: timesteps of one picture, or pictures at one timestep."""

    batch: int
    over: BatchesOver = BatchesOver.PAIRS

    @property
    def name(self) -> str:
        return f"batch_{self.batch}" if self.over is BatchesOver.PAIRS else f"samples_{self.batch}"


ONE = Arm(1).name


class SizeRun(msgspec.Struct, kw_only=True):
    """What was found of one size, by arm."""

    commit: str
    date: str
    hardware: str
    settings: Mapping[str, str | float | bool]
    resident_gib: float
    """Before any forward: weights, their copies, moments, recorded latents."""
    seconds: dict[str, list[float]] = {}
    """Per image-timestep, by round."""
    warm_up_s: dict[str, float] = {}
    """Of the whole arm, at first; not counted."""
    peak_gib: dict[str, float] = {}
    gradient_norm: dict[str, float] = {}
    """Of the mean over an arm's rows: not zero, since multiplying zeros takes a GPU less time."""
    left_out: dict[str, str] = {}


def figures(runs: Mapping[int, SizeRun]) -> dict[str, Figure]:
    """By arm and size; a ratio is of one round, of which later arms may have fewer."""
    found: dict[str, Figure] = {}
    for size, run in runs.items():
        for name, seconds in run.seconds.items():
            found[f"per_timestep_s_{name}_{size}"] = _spread(seconds, "s per image-timestep")
            ratios = [one / many for one, many in zip(run.seconds[ONE], seconds, strict=False)]
            found[f"per_timestep_ratio_{name}_{size}"] = _spread(ratios, "times as fast as one at a time")
        for name, peak in run.peak_gib.items():
            found[f"peak_gib_{name}_{size}"] = _spread([peak], "GiB allocated at most")
    return found


def write(found: Mapping[int, SizeRun], out: Path, merge: bool) -> dict[str, Any]:
    """OUT.json, with other sizes that it has where they are to stay."""
    path = out.with_suffix(".json")
    runs = {**(_kept(path) if merge and path.is_file() else {}), **found}
    first = next(iter(found.values()))
    summary = {
        "benchmark": "tsp",
        "commit": first.commit,
        "date": first.date,
        "hardware": first.hardware,
        "seeds": [0],
        "figures": figures(dict(sorted(runs.items()))),
        "runs": {str(size): run for size, run in sorted(runs.items())},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n")
    return summary


def present(summary: Mapping[str, Any], as_json: bool) -> None:
    table = Table("figure", "median", "lowest", "highest", "unit", title=f"{summary['hardware']}, {summary['commit']}")
    for name, figure in summary["figures"].items():
        table.add_row(name, *(f"{value:.3f}" for value in (figure.value, figure.low, figure.high)), figure.unit)
    Console(width=120).print(table)
    for size, run in summary["runs"].items():
        for name, why in run.left_out.items():
            print(f"{name} at {size} px is left out: {why}")
    if as_json:
        print(msgspec.json.encode({key: value for key, value in summary.items() if key != "runs"}).decode())


def _kept(path: Path) -> dict[int, SizeRun]:
    runs = msgspec.json.decode(path.read_bytes())["runs"]
    return {int(size): msgspec.convert(run, SizeRun) for size, run in runs.items()}


def _spread(values: Sequence[float], unit: str) -> Figure:
    return Figure(value=statistics.median(values), low=min(values), high=max(values), unit=unit)
