"""Scales with round ticks."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from `low .. high` onto pixels `start .. stop`."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.stop - self.start)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers within the range, about `wanted` of them."""
    span = high - low
    if span <= 0:
        return [low]
    rough = span / wanted
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def time_ticks(high: float, wanted: int = 8) -> list[float]:
    """Whole seconds, minutes or hours from 0."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)
    step = next((step for step in steps if high / step <= wanted), 86400 * max(1, round(high / 86400 / wanted)))
    return [float(number * step) for number in range(int(high / step) + 1)]
