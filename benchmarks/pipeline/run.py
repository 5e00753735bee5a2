"""The cells of the benchmark, and every row of a cell with its best choices: one task and one file each."""

import re
import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path

import msgspec

from benchmarks.lib import merge
from benchmarks.lib.parallel import run_all
from benchmarks.lib.provenance import provenance
from benchmarks.pipeline.ceilings import ceiling_s, colocated_s
from benchmarks.pipeline.cells import COLOCATED, Cell, Loss, Machines, Row, Setting, best
from benchmarks.pipeline.figures import Outcome
from spotlight.control.profiles import Profile
from spotlight.core.errors import InputError

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


class RowTask(msgspec.Struct, frozen=True):
    """One row of one cell with one seed."""

    cell: Cell
    row: str
    seed: int

    def path(self, folder: Path) -> Path:
        plain = re.sub(r"[^a-z0-9.+]+", "-", f"{self.cell.name} {self.row}".lower())
        return folder / f"{plain}-seed{self.seed}.json"

    @property
    def size(self) -> float:
        """Grows with the seconds that the task takes: steps of an iteration, and more iterations with asynchrony."""
        setting, many = self.cell.setting, 12.0 if self.row == Row.ASYNC else 1.0
        return many * setting.samples * (setting.steps + setting.timesteps)


class RowDone(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a task, and how it was made."""

    outcome: Outcome
    profile_digest: str
    processor_s: float
    commit: str
    date: str
    hardware: str

    @property
    def seed(self) -> int:
        return self.outcome.seed


def tasks_of(cells: Sequence[Cell], seeds: Sequence[int]) -> list[RowTask]:
    return [
        RowTask(cell, str(row), seed)
        for cell, seed in product(cells, seeds)
        for row in ([*Row, COLOCATED] if cell.machines.speed == 1.0 else list(Row))
    ]


def run_task(folder: Path, task: RowTask) -> None:
    began = time.process_time()
    cell, row = task.cell, task.row
    chosen = best(cell, row if row == COLOCATED else Row(row), task.seed)
    outcome = Outcome(
        cell=cell,
        row=row,
        seed=task.seed,
        rows=chosen.rows,
        units=chosen.units,
        seconds=chosen.seconds,
        ceiling_s=ceiling_s(cell, Row(row)) if row != COLOCATED else None,
        bound_s=colocated_s(cell),
    )
    digest = Profile.load(cell.profile).digest
    spent = time.process_time() - began
    merge.write(task.path(folder), RowDone(outcome=outcome, profile_digest=digest, processor_s=spent, **provenance()))


def run_missing(tasks: Sequence[RowTask], folder: Path, jobs: int) -> list[RowDone]:
    """Run the tasks that have no file, the largest first so that none is left alone at the end; return all."""
    folder.mkdir(parents=True, exist_ok=True)
    open_tasks = [task for task in tasks if not task.path(folder).exists()]
    run_all(partial(run_task, folder), sorted(open_tasks, key=lambda task: -task.size), jobs, "rows")
    return [read_done(task, folder) for task in tasks]


def read_done(task: RowTask, folder: Path) -> RowDone:
    path = task.path(folder)
    done = merge.read(path, RowDone, "pipeline")
    if (done.outcome.cell, done.profile_digest) != (task.cell, Profile.load(task.cell.profile).digest):
        raise InputError(f"{path} was made with another setting or profile; choose another --cells, or delete it.")
    return done
