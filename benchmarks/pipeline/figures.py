"""What is told of `pipeline.py`: outcomes, figures, table and picture."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.learn.figures import Figure
from benchmarks.pipeline.cells import COLOCATED, Cell, Row
from spotlight.control.profiles import Operation, Profile, Provenance

HOUR_S = 3600.0
SHARE_GOAL = 0.95


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One row of one cell, or a pool of all its slots."""

    cell: Cell
    row: str
    seed: int
    rows: int
    """Samples that a slot draws together, the best of those that are offered."""
    units: tuple[str, ...]
    """How much is trained and begun at once, the best likewise."""
    seconds: float
    """Of one iteration, simulated."""
    ceiling_s: float | None
    """None of a pool: its bound is `bound_s`."""
    bound_s: float
    """Of an overhead-free colocated pool of the same slots."""

    @property
    def per_gpu_hour(self) -> float:
        return per_gpu_hour(self.cell, self.seconds)

    @property
    def share(self) -> float | None:
        """Of its ceiling."""
        return None if self.ceiling_s is None else self.ceiling_s / self.seconds


def per_gpu_hour(cell: Cell, seconds: float) -> float:
    return cell.setting.samples * HOUR_S / seconds / cell.machines.slots


class Column(msgspec.Struct, frozen=True):
    """All rows of one cell with one seed."""

    rows: tuple[Outcome, ...]
    colocated: Outcome | None
    """None where slots differ: a gang of unequal ranks is no baseline that anybody would run."""

    @property
    def serial(self) -> Outcome:
        return self.rows[0]

    @property
    def best(self) -> Outcome:
        """With all switches on."""
        return self.rows[-1]

    @property
    def speed_up(self) -> float:
        return self.serial.seconds / self.best.seconds

    def ratios(self) -> list[float]:
        """Each row to the one before."""
        return [before.seconds / row.seconds for before, row in zip(self.rows, self.rows[1:], strict=False)]


def columns_of(outcomes: Sequence[Outcome]) -> list[Column]:
    found: dict[tuple[Cell, int], dict[str, Outcome]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.cell, outcome.seed), {})[outcome.row] = outcome
    return [Column(tuple(rows[row] for row in Row if row in rows), rows.get(COLOCATED)) for rows in found.values()]


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    columns = columns_of(outcomes)
    alike = [column for column in columns if column.colocated is not None]
    best = max(columns, key=lambda column: column.speed_up)
    shares = [(row.share, row) for column in columns for row in column.rows if row.share is not None]
    worst_share, worst = min(shares, key=lambda each: each[0])
    pooled = [column.colocated.seconds / column.best.seconds for column in alike if column.colocated is not None]
    return {
        "best_speedup_vs_serial": Figure(
            value=best.speed_up,
            low=min(column.speed_up for column in columns),
            high=best.speed_up,
            unit=f"times the samples per GPU-hour of disaggregated-serial; {best.serial.cell.name}; low is the worst "
            f"cell; its ceiling allows {best.serial.seconds / (best.best.ceiling_s or 1):.2f}",
        ),
        "median_speedup_vs_serial": _spread([column.speed_up for column in columns], "over all cells"),
        "worst_row_ratio": _spread(
            [ratio for column in columns for ratio in column.ratios()], "a row to the one before", min
        ),
        "worst_share_of_ceiling": Figure(
            value=worst_share,
            low=worst_share,
            high=max(share for share, _ in shares),
            unit=f"of the row's arithmetic ceiling; {worst.row} at {worst.cell.name}",
        ),
        "rows_below_share_goal": _count([share < SHARE_GOAL for share, _ in shares], f"rows below {SHARE_GOAL:g}"),
        "speedup_vs_colocated": _spread(pooled, "all switches on, to a colocated pool with its changes of role"),
        "speedup_vs_colocated_overhead_free": _spread(
            [column.best.bound_s / column.best.seconds for column in columns],
            "all switches on, to a pool without any overhead: 1 is the bound",
        ),
        "bound_vs_serial": _spread(
            [column.serial.seconds / (column.best.ceiling_s or 1) for column in columns],
            "times disaggregated-serial that the ceiling with all switches allows: below 2.1 they cannot reach that",
        ),
        **{
            f"ratio_{row.name.lower()}": _spread([column.ratios()[place] for column in columns], f"{row} to before")
            for place, row in enumerate(list(Row)[1 : len(columns[0].rows)])
        },
    }


def _spread(values: Sequence[float], unit: str, of: Callable[[Iterable[float]], float] = statistics.median) -> Figure:
    return Figure(value=of(values), low=min(values), high=max(values), unit=unit)


def _count(hits: Sequence[bool], unit: str) -> Figure:
    return Figure(value=sum(hits), low=sum(hits), high=len(hits), unit=f"{unit}; high is all")


def ranks_of(outcomes: Sequence[Outcome]) -> list[int]:
    """Of all gangs that train: trainers, or a whole pool."""
    return sorted(
        {each.cell.machines.slots if each.row == COLOCATED else each.cell.machines.trainers for each in outcomes}
    )


def modelled(profile: Profile, ranks: Iterable[int]) -> list[str]:
    """Operations that the rows are charged for and whose seconds were not measured."""
    charged = [Operation.DENOISE_STEP, Operation.TRAIN_TIMESTEP, Operation.DECODE, Operation.REWARD]
    charged += [Operation.PUBLISH, Operation.NODE_FETCH, Operation.ADOPT, Operation.ROLE_SWITCH]
    found = [str(each) for each in charged if profile.provenance(each) is not Provenance.MEASURED]
    joined = [each for each in ranks if profile.provenance(Operation.OPTIMIZER_STEP, each) is not Provenance.MEASURED]
    return [*found, *(f"{Operation.OPTIMIZER_STEP} of {each} ranks" for each in joined)]


def show(outcomes: Sequence[Outcome], title: str) -> None:
    table = Table("cell", "row", "s", "per GPU-h", "x serial", "x before", "of ceiling", "x bound", title=title)
    for column in columns_of(outcomes):
        ratios = [1.0, *column.ratios()]
        for place, (row, ratio) in enumerate(zip(column.rows, ratios, strict=True)):
            table.add_row(
                row.cell.name if not place else "",
                f"{row.row} ({row.rows})",
                f"{row.seconds:.1f}",
                f"{row.per_gpu_hour:.1f}",
                f"{column.serial.seconds / row.seconds:.2f}",
                f"{ratio:.2f}",
                f"{row.share:.2f}" if row.share is not None else "",
                f"{row.bound_s / row.seconds:.2f}",
            )
        pool = column.colocated
        if pool is not None:
            times = f"{column.serial.seconds / pool.seconds:.2f}"
            table.add_row(
                "", f"colocated ({pool.rows})", f"{pool.seconds:.1f}", f"{pool.per_gpu_hour:.1f}", times, "", "",
                f"{pool.bound_s / pool.seconds:.2f}",
            )  # fmt: skip
        table.add_section()
    Console(width=150).print(table)


def draw(outcomes: Sequence[Outcome], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = columns_of(outcomes)
    seeds = {column.serial.seed for column in columns}
    columns = [column for column in columns if column.serial.seed == min(seeds)]
    colours = dict(zip(Row, ("#999999", "#56b4e9", "#0072b2", "#e69f00", "#009e73"), strict=True))
    figure, axis = plt.subplots(figsize=(9.5, 0.36 * len(columns) + 1.8))
    for place, column in enumerate(columns):
        for row in reversed(column.rows):
            times = column.serial.seconds / row.seconds
            label = row.row if not place else None
            axis.barh(place, times, color=colours[Row(row.row)], height=0.72, label=label)
        ceiling = column.best.ceiling_s
        if ceiling is not None:
            axis.plot(
                [column.serial.seconds / ceiling] * 2, [place - 0.36, place + 0.36], color="#222222", linewidth=1.6
            )
        if column.colocated is not None:
            axis.plot(column.serial.seconds / column.colocated.seconds, place, "D", color="#cc79a7", markersize=4)
    axis.set_yticks(range(len(columns)), [column.serial.cell.name for column in columns], fontsize=7)
    axis.set_ylim(len(columns) - 0.4, -0.6)
    axis.set_xlabel(
        "samples per GPU-hour, times disaggregated-serial; line: ceiling with all switches; diamond: colocated",
        fontsize=8,
    )
    axis.grid(axis="x", alpha=0.3)
    handles, labels = axis.get_legend_handles_labels()
    axis.legend(handles[::-1], labels[::-1], fontsize=7, loc="upper right")
    axis.set_title(title, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
