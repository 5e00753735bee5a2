"""What each way to keep GPUs busy is worth: serial, then groups trained as they come (GAP), batches over timesteps
(TSP), trainers that roll out (TAG) and rollouts one version ahead (asynchrony), in virtual time.

    python -m benchmarks.pipeline [--quick] [--json] [--out docs/results/pipeline]

The control plane is the product's; machines are as fast as the profiles of Qwen-Image 20 B on H200s say, and capacity
is steady. Every row of every cell may choose how many samples a slot draws together, of those that were timed: the
baselines as well; from TSP on how many groups make a part, of those that fill batches of pairs or of samples; from TAG
on in how many phases a slot begins its rows, and in how many rounds slots draw what is left at the end; TAG also of
numbers of samples halfway between two that were timed.
Beside each row is its arithmetic ceiling (`pipeline_ceilings.py`), and beside all a colocated pool of the same slots:
simulated with its changes of role, and without any overhead, which no schedule can beat where all slots are alike.
Nothing is drawn by chance but which groups an update gets, so that seeds differ by next to nothing.
"""

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import track

from benchmarks.lib.provenance import provenance
from benchmarks.pipeline.ceilings import ceiling_s, colocated_s
from benchmarks.pipeline.cells import COLOCATED, Cell, Loss, Machines, Row, Setting, best, profile_of
from benchmarks.pipeline.figures import Outcome, draw, figures_of, modelled, ranks_of, show

PROFILES = ("h200-qwen-image-512", "h200-qwen-image-1280")
MACHINES = (Machines(4, 8), Machines(8, 24))
SLOWER = Machines(4, 8, 0.5)
SETTINGS = (
    Setting(32, 10, 2),
    Setting(32, 20, 2),
    Setting(32, 40, 4),
    Setting(8, 20, 2),
    Setting(8, 40, 4),
    Setting(2, 20, 4),
    Setting(2, 40, 10),
    Setting(2, 20, 4, 2),
    Setting(2, 40, 10, 2),
    Setting(32, 50, 4, 16),
    Setting(32, 40, 4, 16, Loss.FLOW_GRPO),
)
"""32x16 and 8x16 samples; 32 samples in one update, or in two as the recipe has them; 32x16 in mini-batches of 32."""
SLOWER_SETTINGS = (Setting(32, 20, 2), Setting(8, 20, 2), Setting(8, 20, 4))
QUICK = (Cell(PROFILES[0], MACHINES[0], Setting(8, 20, 2)), Cell(PROFILES[0], SLOWER, Setting(8, 20, 2)))


progress = Console(stderr=True)


def cells() -> list[Cell]:
    plain = [Cell(*each) for each in product(PROFILES, MACHINES, SETTINGS)]
    return plain + [Cell(profile, SLOWER, setting) for profile, setting in product(PROFILES, SLOWER_SETTINGS)]


def outcomes_of(cell: Cell, seed: int) -> list[Outcome]:
    """Every row, each with the choices that suit it best."""
    names = [*Row, COLOCATED] if cell.machines.speed == 1.0 else list(Row)
    found = []
    for row in names:
        chosen = best(cell, row, seed)
        found.append(
            Outcome(
                cell=cell,
                row=str(row),
                seed=seed,
                rows=chosen.rows,
                units=chosen.units,
                seconds=chosen.seconds,
                ceiling_s=ceiling_s(cell, Row(row)) if row != COLOCATED else None,
                bound_s=colocated_s(cell),
            )
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--quick", action="store_true", help="two cells only")
    parser.add_argument("--out", type=Path, default=Path("runs/pipeline"), help="JSON and PNG are written there")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    cases = list(product(QUICK if args.quick else cells(), args.seeds))
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as processes:
        found = list(
            track(processes.map(outcomes_of, *zip(*cases, strict=True)), "cells", len(cases), console=progress)
        )
    outcomes = [outcome for each in found for outcome in each]
    profiles = sorted({cell.profile for cell, _ in cases})
    title = "virtual time, steady capacity, Qwen-Image 20 B on H200 (profiles)"
    show(outcomes, title)
    summary = {
        "benchmark": "pipeline",
        **provenance(),
        "seeds": args.seeds,
        "settings": {
            "profiles": {name: profile_of(name).digest for name in profiles},
            "modelled": {name: modelled(profile_of(name), ranks_of(outcomes)) for name in profiles},
            "not_charged": "network between nodes, sharding of the model over ranks, evaluation, checkpoints",
        },
        "figures": msgspec.to_builtins(figures_of(outcomes)),
        "outcomes": msgspec.to_builtins(outcomes),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")
    draw(outcomes, title, args.out.with_suffix(".png"))
    if args.json:
        print(json.dumps(summary))
