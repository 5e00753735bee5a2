"""Where the time of the slots went: seconds of every kind by class of slot, of a run and of each of its iterations.

A pure reading of the journal, for reports and benchmarks. The bubbles of a pipeline are what is `idle`.

Invariant: the kinds of a class add up to the time that its slots were held, and iterations to the run
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
"""Seconds; only what there is."""


class IterationBubbles(msgspec.Struct, frozen=True, kw_only=True):
    """From the end of the iteration before to its own, which is None while it is not done."""

    iteration: int
    start: float
    end: float | None
    seconds: ByTenure


class Bubbles(msgspec.Struct, frozen=True, kw_only=True):
    """Of a run so far."""

    seconds: ByTenure
    iterations: tuple[IterationBubbles, ...]

    def idle_shares(self) -> dict[Tenure, float]:
        """Of the time that slots of a class were held."""
        return {tenure: share(seconds, Activity.IDLE) for tenure, seconds in self.seconds.items()}


def bubbles_of(meter: CostMeter) -> Bubbles:
    """What a meter that has read a journal says of its slots' time."""
    return Bubbles(
        seconds=_by_tenure(meter.accounts()),
        iterations=tuple(
            IterationBubbles(
                iteration=period.iteration, start=period.start, end=period.end, seconds=_by_tenure(accounts)
            )
            for period, accounts in meter.periods()
        ),
    )


def share(seconds: Mapping[Activity, float], kind: Activity) -> float:
    """Of all seconds, those of that kind; 0 of nothing."""
    held = math.fsum(seconds.values())
    return seconds.get(kind, 0.0) / held if held else 0.0


def _by_tenure(accounts: Sequence[Account]) -> ByTenure:
    summed: ByTenure = {}
    for tenure in Tenure:
        mine = [account.seconds for account in accounts if account.tenure is tenure]
        kinds = {kind: math.fsum(seconds.get(kind, 0.0) for seconds in mine) for kind in Activity}
        if any(kinds.values()):
            summed[tenure] = {kind: seconds for kind, seconds in kinds.items() if seconds}
    return summed
