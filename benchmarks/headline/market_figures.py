"""The headline by market: figures of races over many windows, by the spot slots that they held.

A race is one task with one seed at one size on one window. Its target is the mean of the last two evaluations of
`reserved-only`. A setup reaches it when the mean of two consecutive evaluations first does, on both sides: such a mean
stands halfway between its evaluations, and between two means the curve is a straight line. A rival that never reaches
the target counts with all its hours and dollars, which favours it. A race in which ours does not is lost, and its gain
is 1 at most: nothing tells when ours would have reached it.

Races of one task and real seed share learning curves, so these are the only independent units: intervals resample
them, not races.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.headline.cells import Cell, CellPoint
from benchmarks.headline.market_windows import MarketClass
from benchmarks.headline.setups import BASELINE, EXPLORING, FALLBACK, STEADY, WITHOUT_SPOT, fitted_seed
from benchmarks.lib.bootstrap import interval
from benchmarks.lib.crossings import Spent, first_reaching_mean
from benchmarks.lib.figures import Figure
from benchmarks.lib.fixed_scores import FIXED_SCORES
from spotlight.control.market.prices import Price, PriceTable
from spotlight.core.errors import InputError
from spotlight.core.work import SlotClass

PRICED = "aws-p5-h100"
INLINE, SAME_SLOTS = "explore-inline", "reserved-explore"
RIVALS = (SAME_SLOTS, "spot-no-explore", "on-demand-explore")


class Crossing(NamedTuple):
    """What a setup had spent when it reached a score."""

    iterations: float
    hours: float
    reserved_hours: float
    spot_hours: float
    came: bool

    def dollars(self, price: Price) -> float:
        spot = price.per_gpu_hour(SlotClass.SPOT) if self.spot_hours else 0.0
        return self.reserved_hours * price.per_gpu_hour(SlotClass.RESERVED) + self.spot_hours * spot


def final_score(points: Sequence[CellPoint]) -> float:
    return (points[-2].score + points[-1].score) / 2


def crossing(points: Sequence[CellPoint], target: float) -> Crossing:
    """Where the mean of two consecutive evaluations first reaches the target; the end of the run if it never does."""
    spent = [_spent(point) for point in points]
    at = first_reaching_mean([point.score for point in points], spent, target)
    return _crossing(spent[-1] if at is None else at, came=at is not None)


def _crossing(spent: Spent, came: bool) -> Crossing:
    iterations, hours, reserved_hours, spot_hours = map(float, spent)
    return Crossing(iterations, hours, reserved_hours, spot_hours, came)


def _at_most_even(mine: Crossing, gain: float) -> float:
    """The gain of ours: none if it ended without the score, however soon."""
    return gain if mine.came else min(gain, 1.0)


def _spent(point: CellPoint) -> Spent:
    return np.array([point.iteration, point.hours, point.reserved_hours, point.spot_hours])


class MarketRace(msgspec.Struct, frozen=True):
    """All setups of one task with one seed on the same window."""

    ours: str
    family: str
    profile: str
    trace: str
    seed: int
    cells: dict[str, Cell]

    @property
    def unit(self) -> tuple[str, int]:
        """The task and real seed, whose races share learning curves: modelled seeds are drawn from real ones."""
        is_modelled = self.cells[BASELINE].numerics == "model"
        return self.family, fitted_seed(self.seed) if is_modelled else self.seed

    @property
    def name(self) -> str:
        return f"{self.family} {self.profile.rpartition('-')[2]} {self.trace} seed {self.seed}"

    @property
    def target(self) -> float:
        return final_score(self.cells[BASELINE].points)

    def took(self, setup: str, target: float | None = None) -> Crossing:
        return crossing(self.cells[setup].points, self.target if target is None else target)

    @property
    def slots(self) -> float:
        """Mean spot slots that ours held until it reached the score."""
        ours = self.took(self.ours)
        return ours.spot_hours / ours.hours

    @property
    def market(self) -> MarketClass:
        return MarketClass.of(self.slots)

    def sooner(self, rival: str, ours: str | None = None) -> float:
        mine, other = self.took(ours or self.ours), self.took(rival)
        return _at_most_even(mine, other.hours / mine.hours)

    def cheaper(self, rival: str, price: Price, ours: str | None = None) -> float:
        mine, other = self.took(ours or self.ours), self.took(rival)
        return _at_most_even(mine, other.dollars(price) / mine.dollars(price))

    @property
    def is_lost(self) -> bool:
        return not self.took(self.ours).came or self.sooner(BASELINE) < 1


def completed(found: Sequence[Cell]) -> list[Cell]:
    """All cells, and those of setups that do not explore for the seeds that have none.

    Such a setup learns as `reserved-only` does, whatever its machines are, and its clock is the same with every seed
    (tests/unit/test_market_benchmark.py). So another seed has the clock of the seed that ran, and the scores of its own
    `reserved-only`.
    """
    curves = {(cell.family, cell.profile, cell.seed): cell for cell in found if cell.setup == BASELINE}
    clocks = [cell for cell in found if cell.setup not in (*EXPLORING, *WITHOUT_SPOT)]
    known = {(cell.family, cell.profile, cell.trace, cell.setup, cell.seed) for cell in clocks}
    made: list[Cell] = []
    for cell, ((family, profile, seed), own) in product(clocks, curves.items()):
        if (cell.family, cell.profile) != (family, profile):
            continue
        if (family, profile, cell.trace, cell.setup, seed) not in known and _scores(cell) == _scores(
            curves.get((family, profile, cell.seed))
        ):
            known.add((family, profile, cell.trace, cell.setup, seed))
            made.append(_with_scores(cell, own))
    return [*found, *made]


def _scores(cell: Cell | None) -> list[tuple[int, float]]:
    return [] if cell is None else [(point.iteration, point.score) for point in cell.points]


def _with_scores(clock: Cell, curve: Cell) -> Cell:
    points = tuple(
        msgspec.structs.replace(at, score=of.score) for at, of in zip(clock.points, curve.points, strict=True)
    )
    return msgspec.structs.replace(clock, seed=curve.seed, points=points)


def market_races(found: Sequence[Cell], ours: str) -> list[MarketRace]:
    """Races with ours and the baseline; setups without spot machines are in every race of their task and seed."""
    raced: dict[tuple[str, str, str, int], dict[str, Cell]] = {}
    for cell in found:
        if cell.setup not in WITHOUT_SPOT:
            raced.setdefault((cell.family, cell.profile, cell.trace, cell.seed), {})[cell.setup] = cell
    shared = [cell for cell in found if cell.setup in WITHOUT_SPOT]
    for (family, profile, _, seed), members in raced.items():
        members |= {
            cell.setup: cell
            for cell in shared
            if (cell.family, cell.profile, cell.seed) == (family, profile, seed)
        }  # fmt: skip
    whole = [MarketRace(ours, *key, members) for key, members in raced.items() if {ours, BASELINE} <= members.keys()]
    return sorted(whole, key=lambda race: race.name)


# -- figures -----------------------------------------------------------------------------------------------------------


def figures_of(found: Sequence[Cell], ours: str) -> dict[str, Figure]:
    prices = PriceTable.load(None)
    every = market_races(completed(found), ours)
    field = [race for race in every if race.trace != STEADY]
    if not field:
        raise InputError(
            f"no market has cells of both '{ours}' and '{BASELINE}', so nothing can be compared; run them."
        )
    figures: dict[str, Figure] = {"races": Figure.single(len(field), "races"), "windows": _windows(field)}
    for market in MarketClass:
        races = [race for race in field if race.market is market]
        if races:
            figures |= class_figures(market, races, prices)
    worst, best = (pick(field, key=lambda race: race.sooner(BASELINE)) for pick in (min, max))
    low, high = worst.sooner(BASELINE), best.sooner(BASELINE)
    figures["worst_vs_reserved_only"] = Figure(value=low, low=low, high=high, unit=f"times sooner; {worst.name}")
    figures |= decomposition([race for race in every if race.trace == STEADY], "steady")
    figures |= fixed_score_figures(field)
    return figures


def _windows(field: Sequence[MarketRace]) -> Figure:
    return Figure.single(len({race.trace for race in field}), "recorded windows")


def class_figures(market: MarketClass, races: Sequence[MarketRace], prices: PriceTable) -> dict[str, Figure]:
    price, kind = prices.rows[PRICED], market.value
    figures = {
        f"races_{kind}": Figure.single(len(races), f"races of {len({race.trace for race in races})} windows"),
        f"share_lost_{kind}": spread(races, lambda race: float(race.is_lost), arithmetic, "of races"),
        f"held_slots_{kind}": spread(races, lambda race: race.slots, arithmetic, "spot slots until the score"),
        f"speedup_{kind}": spread(races, sooner_by(BASELINE), geometric, sooner_than(BASELINE)),
        f"speedup_{kind}_extremes": extremes([race.sooner(BASELINE) for race in races], sooner_than(BASELINE)),
        f"cost_{kind}": spread(races, cheaper_by(BASELINE, price), geometric, cheaper_than(BASELINE)),
    }
    for family in sorted({race.family for race in races}):
        mine = [race for race in races if race.family == family]
        figures[f"speedup_{kind} {family}"] = spread(mine, sooner_by(BASELINE), geometric, sooner_than(BASELINE))
    for rival in RIVALS:
        members = [race for race in races if rival in race.cells]
        if members:
            name = rival.replace("-", "_")
            figures[f"speedup_vs_{name}_{kind}"] = spread(members, sooner_by(rival), geometric, sooner_than(rival))
            figures[f"cost_vs_{name}_{kind}"] = spread(
                members, cheaper_by(rival, price), geometric, cheaper_than(rival)
            )
    if market is MarketClass.FULL:
        figures |= costs_at_full_capacity(races, prices)
    return figures | fallback_figures(kind, races, price)


def costs_at_full_capacity(races: Sequence[MarketRace], prices: PriceTable) -> dict[str, Figure]:
    """Dollars of exploring on reserved slots alone over ours, by every price row of such GPUs with both prices."""
    members = [race for race in races if SAME_SLOTS in race.cells]
    priced = [row for row in prices.rows.values() if row.spot_per_hour is not None]
    rows = [row for row in priced if "h100" in row.name or "h200" in row.name]
    figures = {}
    for row in rows if members else ():
        suffix = "" if row.name == PRICED else f" {row.name}"
        found = spread(members, cheaper_by(SAME_SLOTS, row), geometric, cheaper_than(SAME_SLOTS))
        figures[f"cost_vs_reserved_explore{suffix}"] = found
    return figures


def fallback_figures(kind: str, races: Sequence[MarketRace], price: Price) -> dict[str, Figure]:
    helped = [race for race in races if f"{race.ours}{FALLBACK}" in race.cells]
    if not helped:
        return {}
    ours = f"{helped[0].ours}{FALLBACK}"
    without = f"times the dollars of {helped[0].ours} without stand-ins"
    return {
        f"speedup_{kind}_with_fallback": spread(helped, sooner_by(BASELINE, ours), geometric, sooner_than(BASELINE)),
        f"cost_{kind}_with_fallback": spread(
            helped, cheaper_by(BASELINE, price, ours), geometric, cheaper_than(BASELINE)
        ),
        f"price_of_fallback_{kind}": spread(
            helped, lambda race: 1 / race.cheaper(race.ours, price, ours), geometric, without
        ),
    }


FACTORS = {
    "explore_on_the_same_slots": (BASELINE, SAME_SLOTS),
    "more_slots": (SAME_SLOTS, INLINE),
    "previews_beside_training": (INLINE, ""),
}
"""The steps from `reserved-only` to ours, whose factors multiply to the whole; "" is ours."""


def decomposition(races: Sequence[MarketRace], where: str) -> dict[str, Figure]:
    """Factors of the gain: exploring on the same slots, with more slots, with previews beside training."""
    whole = [race for race in races if {SAME_SLOTS, INLINE} <= race.cells.keys()]
    if not whole:
        return {}
    figures = {
        f"factor_{name}_{where}": spread(
            whole,
            sooner_by(slow, fast or whole[0].ours),
            geometric,
            f"times sooner: {fast or whole[0].ours} than {slow}",
        )
        for name, (slow, fast) in FACTORS.items()
    }
    figures[f"factor_all_{where}"] = spread(
        whole, sooner_by(BASELINE), geometric, "times sooner: product of the factors"
    )
    return figures


def _sooner_at(score: float, race: MarketRace) -> float:
    return race.took(BASELINE, score).hours / race.took(race.ours, score).hours


def fixed_score_figures(field: Sequence[MarketRace]) -> dict[str, Figure]:
    """Times sooner than `reserved-only` to fixed scores, where both reach them; the unit counts the others."""
    figures = {}
    for family in sorted({race.family for race in field}):
        for score in FIXED_SCORES.get(family, ()):
            mine = [race for race in field if race.family == family]
            both = [race for race in mine if race.took(BASELINE, score).came and race.took(race.ours, score).came]
            if both:
                figures[f"speedup_at_{score:.2f} {family}"] = spread(
                    both,
                    partial(_sooner_at, score),
                    geometric,
                    f"times sooner than {BASELINE}; {len(mine) - len(both)} of {len(mine)} did not reach it",
                )
    return figures


# -- spreads -----------------------------------------------------------------------------------------------------------


def sooner_than(rival: str) -> str:
    return f"times sooner than {rival}"


def cheaper_than(rival: str) -> str:
    return f"times cheaper than {rival}"


def sooner_by(rival: str, ours: str | None = None) -> Callable[[MarketRace], float]:
    return lambda race: race.sooner(rival, ours)


def cheaper_by(rival: str, price: Price, ours: str | None = None) -> Callable[[MarketRace], float]:
    return lambda race: race.cheaper(rival, price, ours)


def arithmetic(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def geometric(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def extremes(values: Sequence[float], unit: str) -> Figure:
    return Figure(value=geometric(values), low=min(values), high=max(values), unit=f"{unit}; least and most")


def spread(
    races: Sequence[MarketRace],
    value: Callable[[MarketRace], float],
    middle: Callable[[Sequence[float]], float],
    unit: str,
) -> Figure:
    """The mean over races, with its 95 % interval over tasks and seeds."""
    units: dict[tuple[str, int], list[float]] = {}
    for race in races:
        units.setdefault(race.unit, []).append(value(race))
    by_unit = list(units.values())

    def over(drawn: Sequence[list[float]]) -> float:
        return middle([each for values in drawn for each in values])

    low, high = interval(by_unit, over)
    return Figure(
        value=over(by_unit), low=low, high=high, unit=f"{unit}; interval over {len(by_unit)} tasks and real seeds"
    )
