"""A run as a curve: held-out score against iterations, hours and dollars.

A point has the cost at the end of the iteration that made the evaluated weights, although the evaluation is drawn
during the next iteration and recorded after it. The base model is at 0.

Invariant: hours and dollars of a curve never fall, and reaching a higher target never takes less
(tests/property/test_compare_property.py).
"""

from collections.abc import Iterable

import msgspec

from spotlight.control.market.bill import HOUR_S
from spotlight.control.market.bubbles import bubbles_of
from spotlight.control.market.occupancy import Tenure
from spotlight.control.market.prices import PriceTable
from spotlight.core.errors import InputError
from spotlight.core.events import IterationDone, Record
from spotlight.core.journal import read
from spotlight.folder import RunFolder
from spotlight.surface.projections import RunView


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Iterations, cost and score of evaluated weights."""

    iteration: int
    hours: float
    dollars: float
    score: float


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """The curve of one run."""

    setup: str
    seed: int
    score: str
    """Name of the held-out score."""
    points: tuple[CurvePoint, ...]
    idle_share: dict[Tenure, float] = {}
    """Idle share of the time that slots of a class were held, over the whole run."""

    @property
    def first(self) -> float:
        return self.points[0].score

    @property
    def final(self) -> float:
        """Mean of the last two evaluations: less noisy than the best of many."""
        last = self.points[-2:] if len(self.points) > 2 else self.points[-1:]
        return sum(point.score for point in last) / len(last)

    @property
    def best(self) -> float:
        """The end of the monotone envelope."""
        return max(point.score for point in self.points)


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """Cost at which a curve first reaches a score."""

    iterations: float
    hours: float
    dollars: float


def to_target(curve: Curve, score: float) -> Reached | None:
    """Cost at which the monotone envelope of the curve first reaches `score`; None if it never does.

    The envelope is the best score so far: a later dip does not undo it. Between two evaluations it is a straight line,
    in iterations, hours and dollars alike.
    """
    before: CurvePoint | None = None
    for point in curve.points:
        if point.score >= score:
            return _between(before, point, score)
        # At a dip the envelope keeps its score, at a later time and a higher cost.
        level = point.score if before is None else max(before.score, point.score)
        before = msgspec.structs.replace(point, score=level)
    return None


class CurveFold:
    """Hours and dollars of every iteration beside the view, record by record."""

    def __init__(self, prices: PriceTable) -> None:
        self.view = RunView()
        self._prices = prices
        self._began: float | None = None
        self._made = {0: (0.0, 0.0)}
        """Hours and dollars by the iterations that the weights contain."""

    def apply(self, record: Record) -> None:
        self.view.apply(record)
        self._began = record.at if self._began is None else self._began
        if isinstance(record.event, IterationDone):
            # After a restore an iteration is repeated, and later ones do not exist yet.
            done = record.event.iteration
            self._made = {count: spent for count, spent in self._made.items() if count <= done}
            self._made[done + 1] = ((record.at - self._began) / HOUR_S, _dollars(self.view, self._prices))

    def points(self, score: str) -> list[CurvePoint]:
        """One point per evaluation of weights that are still part of the run."""
        return [
            CurvePoint(iteration=count, hours=self._made[count][0], dollars=self._made[count][1], score=found.value)
            for count, found in self.view.curve(score)
            if count in self._made
        ]


def curve_of(records: Iterable[Record], prices: PriceTable, setup: str, score: str | None = None) -> Curve:
    """The curve of a run's records; default is the headline score."""
    fold = CurveFold(prices)
    for record in records:
        fold.apply(record)
    view = fold.view
    name = score or view.headline() or "reward"
    points = fold.points(name)
    if not points:
        raise InputError(
            f"the run of '{setup}' has no held-out score '{name}', so it has no curve; wait for its first evaluation, "
            "or name a score that it has."
        )
    idle_share = bubbles_of(view.meter).idle_shares()
    return Curve(setup=setup, seed=view.facts.seed, score=name, points=tuple(points), idle_share=idle_share)


def read_curve(folder: RunFolder, prices: PriceTable, setup: str, score: str | None = None) -> Curve:
    """The curve of a run folder, finished or not."""
    return curve_of(read(folder.journal), prices, setup, score)


def _between(before: CurvePoint | None, after: CurvePoint, score: float) -> Reached:
    if before is None:
        return Reached(iterations=after.iteration, hours=after.hours, dollars=after.dollars)
    share = (score - before.score) / (after.score - before.score)
    return Reached(
        iterations=before.iteration + share * (after.iteration - before.iteration),
        hours=before.hours + share * (after.hours - before.hours),
        dollars=before.dollars + share * (after.dollars - before.dollars),
    )


def _dollars(view: RunView, prices: PriceTable) -> float:
    bill = view.bill(prices)
    for line in bill.lines:
        if line.per_gpu_hour is None:
            # Raises an error about the row or its spot price.
            prices[line.price].per_gpu_hour(line.slot_class)
    return bill.dollars
