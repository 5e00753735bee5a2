"""Intervals by resampling independent units: seeds, or settings drawn at random."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

DRAWS = 2000
SHARE = 0.95
UnitT = TypeVar("UnitT")


def interval(
    units: Sequence[UnitT], statistic: Callable[[Sequence[UnitT]], float], draws: int = DRAWS
) -> tuple[float, float]:
    """The middle 95 % of the statistic over as many units, drawn with replacement; reproducible.

    Values that are not independent (races of one seed, which share learning curves) belong to one unit. One unit has no
    spread to resample: both ends are its statistic.
    """
    chance = np.random.default_rng(0)
    picks = chance.integers(len(units), size=(draws, len(units)))
    values = [statistic([units[place] for place in pick]) for pick in picks]
    low, high = np.quantile(values, [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return float(low), float(high)
