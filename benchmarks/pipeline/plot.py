"""The picture of the pipeline: samples per GPU-hour of every cell, switch by switch."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.lib.plot import save
from benchmarks.pipeline.cells import Row
from benchmarks.pipeline.figures import Outcome, columns_of

COLOURS = dict(zip(Row, ("#999999", "#56b4e9", "#0072b2", "#e69f00", "#009e73"), strict=True))


def draw(outcomes: Sequence[Outcome], title: str, path: Path) -> None:
    columns = columns_of(outcomes)
    seeds = {column.serial.seed for column in columns}
    columns = [column for column in columns if column.serial.seed == min(seeds)]
    picture = Figure(figsize=(9.5, 0.36 * len(columns) + 1.8))
    axis = picture.subplots()
    for place, column in enumerate(columns):
        for row in reversed(column.rows):
            times = column.serial.seconds / row.seconds
            label = row.row if not place else None
            axis.barh(place, times, color=COLOURS[Row(row.row)], height=0.72, label=label)
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
    save(picture, path)
