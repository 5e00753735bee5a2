"""A figure: a value, its range and its unit, from values of several seeds, rounds or runs."""

import statistics
from collections.abc import Sequence

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a result; `low` and `high` are the smallest and the largest value, or an interval."""

    value: float | None
    low: float | None
    high: float | None
    unit: str

    @classmethod
    def median(cls, values: Sequence[float], unit: str) -> "Figure":
        return cls(value=statistics.median(values), low=min(values), high=max(values), unit=unit)

    @classmethod
    def mean(cls, values: Sequence[float | None], unit: str) -> "Figure":
        """Mean of the values; if one is None the figure has no value, and `low` is a lower bound."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return cls(value=None, low=min(known, default=None), high=None, unit=unit)
        return cls(value=sum(known) / len(known), low=min(known), high=max(known), unit=unit)

    @classmethod
    def single(cls, value: float, unit: str) -> "Figure":
        return cls(value=value, low=value, high=value, unit=unit)
