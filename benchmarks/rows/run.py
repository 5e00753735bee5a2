"""Rows per worker on one machine: seconds of a rollout phase with fixed numbers of rows, and with `cluster.rows: auto`.

    python -m benchmarks.rows [--recipe words-large-nft] [--arms 8 16 32 64 128 256 auto] [--seeds 0] [--json]

Every arm is a short real run of the recipe, one reserved and two spot processes, through `spotlight train`. On a GPU
they share it. There are no previews: a planner would fit their number to the speed of the slots, and the arms would do
different work. The rollout phase is from the first request of an iteration to its last score, as the journal tells it;
the first two iterations do not count. Arms below 32 rows are slow and only there for comparison, so fewer of their
iterations count.

rows_auto_vs_best: the median rollout phase with auto over that of the best fixed number of rows; its bounds are the
quickest and the slowest counted phase with auto over that same median. iteration_auto_vs_best is the same of whole
iterations.

Runs that are in the folder --cells are not made again, so that an interrupted sweep goes on where it was, and further
seeds can be added. On an H200 a sweep takes about 7 minutes, of which the workers' starts are two thirds.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.learn.figures import Figure
from benchmarks.lib.local_runs import WARM_UP, trained
from benchmarks.lib.provenance import provenance
from spotlight.config import RunConfig, load_config
from spotlight.core.events import IterationDone, Record, WorkerJoined

AUTO = "auto"
ARMS = ("8", "16", "32", "64", "128", "256", AUTO)
FAST = 32
"""Rows from which an arm counts as many iterations as it is asked for."""
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
    """Of its workers, in the order in which they came."""
    rollout_s: tuple[float, ...]
    train_s: tuple[float, ...]
    iteration_s: tuple[float, ...]
    """Of the iterations that count."""
    first_worker_s: float
    """Until the first worker was there."""
    commit: str
    date: str
    hardware: str


def config_of(recipe: str, arm: str, seed: int, iterations: int, folder: Path) -> RunConfig:
    changes = (f"cluster.rows={arm}", f"seed={seed}", f"iterations={WARM_UP + counted(arm, iterations)}")
    output = (f"output.folder={folder}", "output.name=run", "output.journal.sync=never")
    return load_config(recipe, [*SETTINGS, *changes, *output])


def counted(arm: str, iterations: int) -> int:
    """Iterations after the warm-up."""
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
    """From the folder, or from a run."""
    path = cells / f"{recipe}-{arm}-{seed}.json"
    if path.is_file():
        return msgspec.json.decode(path.read_bytes(), type=Cell)
    with tempfile.TemporaryDirectory(prefix="rows-") as scratch:
        records = trained(config_of(recipe, arm, seed, iterations, Path(scratch) / "runs"), Path(scratch))
    cell = cell_of(recipe, arm, seed, records)
    cells.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(cell))
    rollout_s, iteration_s = statistics.median(cell.rollout_s), statistics.median(cell.iteration_s)
    told = (
        f"{arm} rows, seed {seed}: {cell.rows}, {rollout_s:.2f} s per rollout phase, {iteration_s:.2f} s per iteration"
    )
    print(told, file=sys.stderr, flush=True)
    return cell


def figures(cells: Sequence[Cell]) -> dict[str, Figure]:
    """Iterations of all seeds of an arm together."""
    arms = list(dict.fromkeys(cell.arm for cell in cells))
    shown: dict[str, Figure] = {}
    for phase in ("rollout", "iteration"):
        seconds = {
            arm: [value for cell in cells if cell.arm == arm for value in getattr(cell, f"{phase}_s")] for arm in arms
        }
        for arm, values in seconds.items():
            shown[f"{phase}_s_{arm}"] = _figure(values, "s")
        fixed = [statistics.median(values) for arm, values in seconds.items() if arm != AUTO]
        if AUTO in seconds and fixed:
            ratios = [value / min(fixed) for value in seconds[AUTO]]
            name = "rows_auto_vs_best" if phase == "rollout" else "iteration_auto_vs_best"
            shown[name] = _figure(ratios, "times the best fixed rows")
    chosen = [float(rows) for cell in cells if cell.arm == AUTO for rows in cell.rows]
    if chosen:
        shown["auto_rows"] = _figure(chosen, "rows")
    return shown


def _figure(values: Sequence[float], unit: str) -> Figure:
    return Figure(value=statistics.median(values), low=min(values), high=max(values), unit=unit)


def present(cells: Sequence[Cell], settings: Mapping[str, Any], out: Path | None, as_json: bool) -> None:
    found = figures(cells)
    table = Table("figure", "median", "least", "most", "unit")
    for name, figure in found.items():
        table.add_row(name, f"{figure.value:.3g}", f"{figure.low:.3g}", f"{figure.high:.3g}", figure.unit)
    Console(stderr=True).print(table)
    seeds = sorted({cell.seed for cell in cells})
    result = {
        "benchmark": "rows", **provenance(), "seeds": seeds, "settings": settings, "figures": found, "cells": cells
    }  # fmt: skip
    if out is not None:
        out.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    if as_json:
        print(msgspec.json.encode({name: each for name, each in result.items() if name != "cells"}).decode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="words-large-nft", help="words-nft for a try on a CPU")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), help="numbers of rows, and auto")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--iterations", type=int, default=4, help="that count, after the warm-up")
    parser.add_argument("--cells", type=Path, default=Path("runs/rows"), help="folder of the runs that are done")
    parser.add_argument("--out", type=Path, help="write OUT.json")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    cells = [measured(args.recipe, arm, seed, args.iterations, args.cells) for seed in args.seeds for arm in args.arms]
    settings = {"recipe": args.recipe, "changes": SETTINGS, "iterations": args.iterations, "warm_up": WARM_UP}
    present(cells, settings, args.out, args.json)
