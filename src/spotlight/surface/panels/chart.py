"""A chart as numbers: one x axis and some lines or bars. Page, report and table are made from the same chart."""

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec

MOST_POINTS = 240
"""Largest number of points of a line; in longer runs each is a mean over neighbours."""
MOST_CELLS = 60
"""Largest number of rows of a chart's table; longer charts show the first and the last."""


class ChartUnit(StrEnum):
    """How values are written."""

    SCORE = "score"
    SHARE = "share"
    COUNT = "count"
    NUMBER = "number"


class ChartKind(StrEnum):
    LINES = "lines"
    BARS = "bars"
    """The lines are stacked bars; the last one is a level beside them."""


class ChartLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line; None where there is no value."""

    label: str
    values: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    """Bounds of the 95 % interval."""


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Lines over one axis, as long as `x`."""

    key: str
    """Name within the run."""
    caption: str
    x_label: str
    x: list[float]
    lines: list[ChartLine]
    unit: ChartUnit = ChartUnit.SCORE
    kind: ChartKind = ChartKind.LINES
    note: str = ""
    """A sentence below the chart."""

    @property
    def shown(self) -> list[int]:
        """Places of the points in the table."""
        if len(self.x) <= MOST_CELLS:
            return list(range(len(self.x)))
        return [*range(MOST_CELLS // 2), *range(len(self.x) - MOST_CELLS // 2, len(self.x))]


def finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def binned(curve: Sequence[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """At most `most` points, each the mean of the same number of neighbours; the last bin may have fewer."""
    width = -(-len(curve) // most)
    if width <= 1:
        return list(curve)
    bins = [curve[start : start + width] for start in range(0, len(curve), width)]
    return [
        (math.fsum(step for step, _ in each) / len(each), math.fsum(value for _, value in each) / len(each))
        for each in bins
    ]
