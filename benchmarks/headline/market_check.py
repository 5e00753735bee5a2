"""Races by market with real numbers: their gains, and what the modelled ones of the same races are off by."""

import math
from collections.abc import Sequence

from benchmarks.headline.cells import Cell
from benchmarks.headline.market_figures import (
    PRICED,
    SAME_SLOTS,
    MarketRace,
    arithmetic,
    cheaper_by,
    cheaper_than,
    completed,
    extremes,
    geometric,
    market_races,
    sooner_by,
    sooner_than,
    spread,
)
from benchmarks.headline.market_windows import MarketClass
from benchmarks.headline.setups import BASELINE, STEADY
from benchmarks.lib.figures import Figure
from spotlight.control.market.prices import Price, PriceTable
from spotlight.core.errors import InputError


def real_figures(races: Sequence[MarketRace], price: Price) -> dict[str, Figure]:
    """Gains by class in races with real numbers."""
    figures = {}
    for market in MarketClass:
        mine = [race for race in races if race.market is market]
        if mine:
            figures[f"speedup_{market.value}_real"] = spread(
                mine, sooner_by(BASELINE), geometric, f"{sooner_than(BASELINE)}, real, {len(mine)} races"
            )
            figures[f"cost_{market.value}_real"] = spread(
                mine, cheaper_by(BASELINE, price), geometric, f"{cheaper_than(BASELINE)}, real"
            )
    worst = min(races, key=lambda race: race.sooner(BASELINE))
    figures["worst_vs_reserved_only_real"] = Figure.single(
        worst.sooner(BASELINE), f"{sooner_than(BASELINE)}, real; {worst.name}"
    )
    explored = [race for race in races if race.market is MarketClass.FULL and SAME_SLOTS in race.cells]
    if explored:
        figures["cost_vs_reserved_explore_real"] = spread(
            explored, cheaper_by(SAME_SLOTS, price), geometric, f"{cheaper_than(SAME_SLOTS)}, real"
        )
    return figures


def check_figures(found: Sequence[Cell], checked: Sequence[Cell], ours: str) -> dict[str, Figure]:
    """Gains with the real numbers of `checked`, and by how much modelled ones differ over the same races."""
    field = [race for race in market_races(completed(found), ours) if race.trace != STEADY]
    real = {race.name: race for race in market_races(completed(checked), ours) if race.trace != STEADY}
    pairs = [(race, real[race.name]) for race in field if race.name in real]
    if not pairs:
        raise InputError("the cells with real numbers are of other races; run some of the same windows and seeds.")
    off = [math.log(model.sooner(BASELINE) / exact.sooner(BASELINE)) for model, exact in pairs]
    grouped: dict[str, list[float]] = {}
    for each, (_, exact) in zip(off, pairs, strict=True):
        grouped.setdefault(exact.market.value, []).append(each)
    by_class = {market: abs(math.expm1(arithmetic(values))) for market, values in grouped.items()}
    return real_figures(list(real.values()), PriceTable.load(None).rows[PRICED]) | {
        "model_error": Figure(
            value=abs(math.expm1(arithmetic(off))),
            low=min(by_class.values()),
            high=max(by_class.values()),
            unit=f"of the geometric mean gain over the same {len(pairs)} races, low and high by class "
            f"({', '.join(sorted(by_class))})",
        ),
        "model_error_by_race": Figure.mean([abs(math.expm1(each)) for each in off], "of a race's gain"),
        "speedup_real": extremes([exact.sooner(BASELINE) for _, exact in pairs], f"{sooner_than(BASELINE)}, real"),
        "speedup_model_same_races": extremes([model.sooner(BASELINE) for model, _ in pairs], sooner_than(BASELINE)),
    }
