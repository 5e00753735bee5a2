"""The cells of the benchmark, and every row of a cell with its best choices."""

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from rich.console import Console
from rich.progress import track

from benchmarks.pipeline.ceilings import ceiling_s, colocated_s
from benchmarks.pipeline.cells import COLOCATED, Cell, Loss, Machines, Row, Setting, best
from benchmarks.pipeline.figures import Outcome

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


def cells() -> list[Cell]:
    plain = [Cell(*each) for each in product(PROFILES, MACHINES, SETTINGS)]
    return plain + [Cell(profile, SLOWER, setting) for profile, setting in product(PROFILES, SLOWER_SETTINGS)]


def outcomes_of(cell: Cell, seed: int) -> list[Outcome]:
    """The outcome of every row with its best choices."""
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


def outcomes_of_all(cells: Sequence[Cell], seeds: Sequence[int]) -> list[Outcome]:
    cases = list(product(cells, seeds))
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as processes:
        found = processes.map(outcomes_of, *zip(*cases, strict=True))
        shown = track(found, "cells", len(cases), console=Console(stderr=True))
        return [outcome for each in shown for outcome in each]
