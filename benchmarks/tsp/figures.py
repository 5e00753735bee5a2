"""Measurements by size and batch, and the ratios of one round."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.lib.figures import Figure
from benchmarks.lib.report import publish, summary_of
from spotlight.control.pipeline.tsp import BatchesOver


@dataclass(frozen=True)
class Arm:
    """A batch of one forward and backward: timesteps of one picture, or pictures at one timestep."""

    batch: int
    over: BatchesOver = BatchesOver.PAIRS

    @property
    def name(self) -> str:
        return f"batch_{self.batch}" if self.over is BatchesOver.PAIRS else f"samples_{self.batch}"


ONE = Arm(1).name


class SizeRun(msgspec.Struct, kw_only=True):
    """Measurements of one size, by arm."""

    commit: str
    date: str
    hardware: str
    settings: Mapping[str, str | float | bool]
    resident_gib: float
    """Memory before any forward: weights, their copies, moments, recorded latents."""
    seconds: dict[str, list[float]] = {}
    """Seconds per image-timestep, by round."""
    warm_up_s: dict[str, float] = {}
    """Seconds of the arm's first batch; not counted."""
    peak_gib: dict[str, float] = {}
    gradient_norm: dict[str, float] = {}
    """Gradient norm of the mean over an arm's rows: must not be 0, because a GPU multiplies zeros faster."""
    left_out: dict[str, str] = {}


def figures(runs: Mapping[int, SizeRun]) -> dict[str, Figure]:
    """Figures by arm and size; a ratio is of one round, and later arms may have fewer rounds."""
    found: dict[str, Figure] = {}
    for size, run in runs.items():
        for name, seconds in run.seconds.items():
            found[f"per_timestep_s_{name}_{size}"] = Figure.median(seconds, "s per image-timestep")
            ratios = [one / many for one, many in zip(run.seconds[ONE], seconds, strict=False)]
            found[f"per_timestep_ratio_{name}_{size}"] = Figure.median(ratios, "times as fast as one at a time")
        for name, peak in run.peak_gib.items():
            found[f"peak_gib_{name}_{size}"] = Figure.single(peak, "GiB allocated at most")
    return found


def earlier(path: Path) -> dict[int, SizeRun]:
    """Sizes of an earlier result."""
    if not path.is_file():
        return {}
    runs = msgspec.json.decode(path.read_bytes())["runs"]
    return {int(size): msgspec.convert(run, SizeRun) for size, run in runs.items()}


def present(found: Mapping[int, SizeRun], out: Path, as_json: bool) -> None:
    """Print the table, write OUT.json; the provenance is that of this process."""
    runs = dict(sorted(found.items()))
    for size, run in runs.items():
        for name, why in run.left_out.items():
            print(f"{name} at {size} px is left out: {why}")
    publish(summary_of("tsp", figures(runs), [0]), out, as_json, runs=runs)
