"""Slot time by tenure and activity, of a run and of each iteration. The `idle` seconds are the pipeline's bubbles.

A pure fold of the journal, for reports and benchmarks.

Invariant: the activities of a tenure add up to the time that its slots were held, and iterations to the run
(tests/property/test_bubbles_property.py).
"""

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from spotlight.control.market.cost import Account, CostMeter
from spotlight.control.market.occupancy import Tenure
from spotlight.core.work import Activity

ByTenure: TypeAlias = dict[Tenure, dict[Activity, float]]
"""Seconds by tenure and activity, without zeros."""


class IterationBubbles(msgspec.Struct, frozen=True, kw_only=True):
    """Slot time from the end of the previous iteration to the end of this one."""

    iteration: int
    start: float
    end: float | None
    """None until the iteration is done."""
    seconds: ByTenure


class Bubbles(msgspec.Struct, frozen=True, kw_only=True):
    """Slot time of a run so far."""

    seconds: ByTenure
    iterations: tuple[IterationBubbles, ...]

    def idle_shares(self) -> dict[Tenure, float]:
        """Idle share of the held time, by tenure."""
        return {tenure: share(seconds, Activity.IDLE) for tenure, seconds in self.seconds.items()}


def bubbles_of(meter: CostMeter, newest: int | None = None) -> Bubbles:
    """Return the slot time of a meter that has read a journal, and of its `newest` iterations; default all."""
    return Bubbles(
        seconds=_by_tenure(meter.accounts()),
        iterations=tuple(
            IterationBubbles(
                iteration=period.iteration, start=period.start, end=period.end, seconds=_by_tenure(accounts)
            )
            for period, accounts in meter.periods(newest=newest)
        ),
    )


def share(seconds: Mapping[Activity, float], kind: Activity) -> float:
    """Share of one activity in all seconds; 0 if there are none."""
    held = math.fsum(seconds.values())
    return seconds.get(kind, 0.0) / held if held else 0.0


def _by_tenure(accounts: Sequence[Account]) -> ByTenure:
    summed: ByTenure = {}
    for tenure in Tenure:
        parts = [account.seconds for account in accounts if account.tenure is tenure]
        kinds = {kind: math.fsum(seconds.get(kind, 0.0) for seconds in parts) for kind in Activity}
        if any(kinds.values()):
            summed[tenure] = {kind: seconds for kind, seconds in kinds.items() if seconds}
    return summed
