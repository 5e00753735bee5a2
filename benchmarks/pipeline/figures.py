"""Outcomes by cell and row, and the figures over all cells."""

import statistics
from collections.abc import Iterable, Sequence

import msgspec
from rich.table import Table

from benchmarks.lib.bootstrap import interval
from benchmarks.lib.figures import Figure
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
    """Samples that a slot draws together, the best of the offered batches."""
    units: tuple[str, ...]
    """Settings of the size of a part, the best of the offered ones."""
    seconds: float
    """Simulated seconds of one iteration."""
    ceiling_s: float | None
    """None for a pool: its bound is `bound_s`."""
    bound_s: float
    """Seconds of an overhead-free colocated pool of the same slots."""

    @property
    def per_gpu_hour(self) -> float:
        return per_gpu_hour(self.cell, self.seconds)

    @property
    def share(self) -> float | None:
        """Share of the ceiling that the row reaches."""
        return None if self.ceiling_s is None else self.ceiling_s / self.seconds


def per_gpu_hour(cell: Cell, seconds: float) -> float:
    return cell.setting.samples * HOUR_S / seconds / cell.machines.slots


class Column(msgspec.Struct, frozen=True):
    """All rows of one cell with one seed."""

    rows: tuple[Outcome, ...]
    colocated: Outcome | None
    """None if slots differ: a gang of unequal ranks is no sensible baseline."""

    @property
    def serial(self) -> Outcome:
        return self.rows[0]

    @property
    def best(self) -> Outcome:
        """The row with all switches on."""
        return self.rows[-1]

    @property
    def speed_up(self) -> float:
        return self.serial.seconds / self.best.seconds

    def ratios(self) -> list[float]:
        """Ratio of each row to the one before."""
        return [before.seconds / row.seconds for before, row in zip(self.rows, self.rows[1:], strict=False)]


def columns_of(outcomes: Sequence[Outcome]) -> list[Column]:
    found: dict[tuple[Cell, int], dict[str, Outcome]] = {}
    for outcome in outcomes:
        found.setdefault((outcome.cell, outcome.seed), {})[outcome.row] = outcome
    return [Column(tuple(rows[row] for row in Row if row in rows), rows.get(COLOCATED)) for rows in found.values()]


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    columns = columns_of(outcomes)
    best = max(columns, key=lambda column: column.speed_up)
    shares = [(row.share, row) for column in columns for row in column.rows if row.share is not None]
    ratios = [ratio for column in columns for ratio in column.ratios()]
    worst_share, worst = min(shares, key=lambda each: each[0])
    return {
        "best_speedup_vs_serial": Figure(
            value=best.speed_up,
            low=min(column.speed_up for column in columns),
            high=best.speed_up,
            unit=f"times the samples per GPU-hour of disaggregated-serial; {best.serial.cell.name}; low is the worst "
            f"cell; its ceiling allows {best.serial.seconds / (best.best.ceiling_s or 1):.2f}",
        ),
        "worst_row_ratio": Figure(value=min(ratios), low=min(ratios), high=max(ratios), unit="a row to the one before"),
        "worst_share_of_ceiling": Figure(
            value=worst_share,
            low=worst_share,
            high=max(share for share, _ in shares),
            unit=f"of the row's arithmetic ceiling; {worst.row} at {worst.cell.name}",
        ),
        "rows_below_share_goal": _count([share < SHARE_GOAL for share, _ in shares], f"rows below {SHARE_GOAL:g}"),
        **{name: Figure.median(values, MEDIANS[name]) for name, values in values_of(columns).items() if values},
    }


MEDIANS = {
    "median_speedup_vs_serial": "over all cells",
    "speedup_vs_colocated": "all switches on, to a colocated pool with its changes of role",
    "speedup_vs_colocated_overhead_free": "all switches on, to a pool without any overhead: 1 is the bound",
    "bound_vs_serial": "times disaggregated-serial that the ceiling with all switches allows: below 2.1 they cannot "
    "reach that",
    **{f"ratio_{row.name.lower()}": f"{row} to before" for row in list(Row)[1:]},
}
"""Figures that are medians over cells, with their units."""


def values_of(columns: Sequence[Column]) -> dict[str, list[float]]:
    """The values of every median, one per cell; a pool of unequal slots has none."""
    pools = [(column.colocated, column.best) for column in columns if column.colocated is not None]
    return {
        "median_speedup_vs_serial": [column.speed_up for column in columns],
        "speedup_vs_colocated": [pool.seconds / best.seconds for pool, best in pools],
        "speedup_vs_colocated_overhead_free": [column.best.bound_s / column.best.seconds for column in columns],
        "bound_vs_serial": [column.serial.seconds / (column.best.ceiling_s or 1) for column in columns],
        **{
            f"ratio_{row.name.lower()}": [column.ratios()[place] for column in columns]
            for place, row in enumerate(list(Row)[1 : len(columns[0].rows)])
        },
    }


def random_figures_of(outcomes: Sequence[Outcome]) -> dict[str, Figure]:
    """The same figures over cells drawn at random, and the spread of every median: quartiles of the cells, and the
    interval in which the median of another such draw would be."""
    figures = {f"random_{name}": figure for name, figure in figures_of(outcomes).items()}
    for name, values in values_of(columns_of(outcomes)).items():
        if values:
            middle, unit = statistics.median(values), MEDIANS[name]
            first, _, third = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
            low, high = interval(values, statistics.median)
            figures[f"random_{name}_quartiles"] = Figure(
                value=middle, low=first, high=third, unit=f"{unit}; quartiles of {len(values)} settings"
            )
            figures[f"random_{name}_interval"] = Figure(
                value=middle, low=low, high=high, unit=f"{unit}; median and its 95 % interval over settings"
            )
    return figures


def _count(hits: Sequence[bool], unit: str) -> Figure:
    return Figure(value=sum(hits), low=sum(hits), high=len(hits), unit=f"{unit}; high is all")


def ranks_of(outcomes: Sequence[Outcome]) -> list[int]:
    """Ranks of all gangs: trainers, or a whole pool."""
    return sorted(
        {each.cell.machines.slots if each.row == COLOCATED else each.cell.machines.trainers for each in outcomes}
    )


def modelled(profile: Profile, ranks: Iterable[int]) -> list[str]:
    """Operations of the rows whose seconds were not measured."""
    charged = [Operation.DENOISE_STEP, Operation.TRAIN_TIMESTEP, Operation.DECODE, Operation.REWARD]
    charged += [Operation.PUBLISH, Operation.NODE_FETCH, Operation.ADOPT, Operation.ROLE_SWITCH]
    found = [str(each) for each in charged if profile.provenance(each) is not Provenance.MEASURED]
    joined = [each for each in ranks if profile.provenance(Operation.OPTIMIZER_STEP, each) is not Provenance.MEASURED]
    return [*found, *(f"{Operation.OPTIMIZER_STEP} of {each} ranks" for each in joined)]


def table_of(outcomes: Sequence[Outcome], title: str) -> Table:
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
    return table
