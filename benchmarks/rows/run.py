"""One short run per arm and seed, and the figures of their phases."""

import statistics
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from benchmarks.lib import merge
from benchmarks.lib.figures import Figure
from benchmarks.lib.local_runs import WARM_UP, trained
from benchmarks.lib.provenance import provenance
from spotlight.config import RunConfig, load_config
from spotlight.core.events import IterationDone, Record, WorkerJoined

AUTO = "auto"
FAST = 32
"""Rows at or above which all iterations of an arm count."""
SETTINGS = (
    *("explore.enabled=off", "eval.every=1000", "eval.prompts=8", "output.checkpoint_every=1000"),
    *("cluster.reserved=1", "cluster.spot=2", "cluster.share_devices=true"),
)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    recipe: str
    arm: str
    seed: int
    rows: tuple[int, ...]
    """Rows of its workers, in the order in which they joined."""
    rollout_s: tuple[float, ...]
    train_s: tuple[float, ...]
    iteration_s: tuple[float, ...]
    """Seconds of the counted iterations."""
    first_worker_s: float
    """Seconds until the first worker joined."""
    commit: str
    date: str
    hardware: str


def config_of(recipe: str, arm: str, seed: int, iterations: int, folder: Path) -> RunConfig:
    changes = (f"cluster.rows={arm}", f"seed={seed}", f"iterations={WARM_UP + counted(arm, iterations)}")
    output = (f"output.folder={folder}", "output.name=run", "output.journal.sync=never")
    return load_config(recipe, [*SETTINGS, *changes, *output])


def counted(arm: str, iterations: int) -> int:
    """Number of iterations after the warm-up."""
    return iterations if arm == AUTO else max(1, min(iterations, iterations * int(arm) // FAST))


def cell_of(recipe: str, arm: str, seed: int, records: Sequence[Record]) -> Cell:
    done = [(record.at, record.event) for record in records if isinstance(record.event, IterationDone)]
    joined = [(record.at, record.event) for record in records if isinstance(record.event, WorkerJoined)]
    ends = [at for at, _ in done[WARM_UP - 1 :]]
    events = [event for _, event in done[WARM_UP:]]
    return Cell(
        recipe=recipe,
        arm=arm,
        seed=seed,
        rows=tuple(event.rows for _, event in joined),
        rollout_s=tuple(event.rollout_s for event in events),
        train_s=tuple(event.train_s for event in events),
        iteration_s=tuple(end - begin for begin, end in pairwise(ends)),
        first_worker_s=joined[0][0],
        **provenance(),
    )


def measured(recipe: str, arm: str, seed: int, iterations: int, cells: Path) -> Cell:
    """The cell, read from the folder or measured by a run."""
    path = cells / f"{recipe}-{arm}-{seed}.json"
    if path.is_file():
        return merge.read(path, Cell, "rows")
    with tempfile.TemporaryDirectory(prefix="rows-") as scratch:
        records = trained(config_of(recipe, arm, seed, iterations, Path(scratch) / "runs"), Path(scratch))
    cell = cell_of(recipe, arm, seed, records)
    cells.mkdir(parents=True, exist_ok=True)
    merge.write(path, cell)
    rollout_s, iteration_s = statistics.median(cell.rollout_s), statistics.median(cell.iteration_s)
    line = (
        f"{arm} rows, seed {seed}: {cell.rows}, {rollout_s:.2f} s per rollout phase, {iteration_s:.2f} s per iteration"
    )
    print(line, file=sys.stderr, flush=True)
    return cell


def figures(cells: Sequence[Cell]) -> dict[str, Figure]:
    """Figures over the iterations of all seeds of an arm."""
    arms = list(dict.fromkeys(cell.arm for cell in cells))
    shown: dict[str, Figure] = {}
    for phase in ("rollout", "iteration"):
        seconds = {
            arm: [value for cell in cells if cell.arm == arm for value in getattr(cell, f"{phase}_s")] for arm in arms
        }
        for arm, values in seconds.items():
            shown[f"{phase}_s_{arm}"] = Figure.median(values, "s")
        fixed = [statistics.median(values) for arm, values in seconds.items() if arm != AUTO]
        if AUTO in seconds and fixed:
            ratios = [value / min(fixed) for value in seconds[AUTO]]
            name = "rows_auto_vs_best" if phase == "rollout" else "iteration_auto_vs_best"
            shown[name] = Figure.median(ratios, "times the best fixed rows")
    chosen = [float(rows) for cell in cells if cell.arm == AUTO for rows in cell.rows]
    if chosen:
        shown["auto_rows"] = Figure.median(chosen, "rows")
    return shown
