"""The figures of the headline, from its cells.

Per task, profile, trace and seed, the target is a share of the gain of `reserved-only` with that seed (its final score
is the mean of its last two evaluations); a setup reaches it when its best score so far first does, linearly between
evaluations. A figure is the geometric mean over all of these, from the least to the most. A run that does not reach the
target counts with all its hours and dollars, which favours its setup; the unit has the number of such runs.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Group

from benchmarks.headline.cells import Cell
from benchmarks.headline.setups import BASELINE, STEADY
from benchmarks.lib.figures import Figure
from benchmarks.lib.report import publish, summary_of
from spotlight.control.market.prices import Price, PriceTable
from spotlight.core.errors import InputError
from spotlight.surface.compare import Curve, Reached, to_target

BUSY = ("pipelined", "spotlight-fixed", "spotlight", "spotlight-pipelined")
"""Setups that use time in which the rivals' slots are idle."""
RIVALS = (
    *("reserved-only", "spot-no-explore", "explore-inline", "on-demand", "on-demand-all"),
    *("reserved-explore", "on-demand-explore"),
)
KIN = ("pipelined", "spotlight-fixed", "spotlight-pipelined", "reserved-explore", "on-demand-explore")
"""Overlap alone, exploration alone, both, and exploration without spot machines; compared with ours if they ran."""
SHARES = (0.25, 0.5, 0.75, 1.0)
PRICED = "aws-p5-h100"
"""Price row of figures without a provider in their name."""
SWEPT_SEEDS = frozenset({0, 1, 2, *range(200, 204), *range(210, 213)})
"""Seeds with which settings were chosen (benchmarks/batches/)."""


class Race(msgspec.Struct, frozen=True):
    """All setups of one task with one seed on the same machines, and which of them is ours."""

    ours: str
    family: str
    profile: str
    trace: str
    seed: int
    cells: dict[str, Cell]

    def took(self, setup: str, share: float, price: Price) -> tuple[Reached, bool]:
        """Cost to a share of the baseline's gain, and whether the setup reached it."""
        baseline = self.cells[BASELINE].curve(price)
        final = baseline.final
        target = final if share == 1 else baseline.first + share * (final - baseline.first)
        curve = self.cells[setup].curve(price)
        there = to_target(curve, target)
        if there is not None:
            return there, True
        last = curve.points[-1]
        return Reached(iterations=last.iteration, hours=last.hours, dollars=last.dollars), False


def races(cells: Sequence[Cell], ours: str) -> list[Race]:
    """All races; setups without spot machines are in every race of their task, profile and seed."""
    found: dict[tuple[str, str, str, int], dict[str, Cell]] = {}
    for cell in cells:
        if cell.trace != STEADY:
            found.setdefault((cell.family, cell.profile, cell.trace, cell.seed), {})[cell.setup] = cell
    for cell in cells:
        if cell.trace == STEADY:
            for key, members in found.items():
                if (cell.family, cell.profile, cell.seed) == (key[0], key[1], key[3]):
                    members[cell.setup] = cell
    whole = [Race(ours, *key, members) for key, members in sorted(found.items()) if {ours, BASELINE} <= members.keys()]
    if not whole:
        raise InputError(
            f"no task has cells of both '{ours}' and '{BASELINE}', so there is nothing to compare; run them."
        )
    return whole


def present(cells: list[Cell], ours: str, out: Path, as_json: bool, **facts: Any) -> None:
    """Print and write the figures of these cells; `facts` are in the result too."""
    from benchmarks.headline.plot import draw, factor_table, ratio_table

    field, prices = races(cells, ours), PriceTable.load(None)
    price = prices.rows[PRICED]
    figures = {
        **overall(field, price),
        **by_race(field, price),
        **by_seeds(field, price),
        **by_provider(field, prices),
    }
    summary = summary_of(
        out.stem,
        figures,
        sorted({race.seed for race in field}),
        ours=ours,
        computed=sorted({f"{cell.commit} on {cell.hardware}" for cell in cells}),
        slot_hours="reserved,spot; since the start, at every evaluation of the curve (iteration, hours, score)",
        **facts,
    )
    draw(field, price, out)
    tables = Group(ratio_table(field, price), factor_table(field, price))
    publish(summary, out, as_json, tables, cells=[summary_of_cell(cell) for cell in cells])


def summary_of_cell(cell: Cell) -> dict[str, object]:
    last = cell.points[-1]
    return {
        **{name: getattr(cell, name) for name in ("family", "setup", "seed", "profile", "trace", "trace_digest")},
        **{name: getattr(cell, name) for name in ("profile_digest", "losses", "previews", "iterations")},
        "hours": round(last.hours, 4),
        "reserved_slot_hours": round(last.reserved_hours, 3),
        "spot_slot_hours": round(last.spot_hours, 3),
        "slot_hours": [f"{point.reserved_hours:.4f},{point.spot_hours:.4f}" for point in cell.points],
        "curve": [[point.iteration, round(point.hours, 4), round(point.score, 4)] for point in cell.points],
    }


def groups_of(field: Sequence[Race]) -> dict[tuple[str, str, str], list[Race]]:
    """Races by task, profile and trace: one for each seed."""
    found: dict[tuple[str, str, str], list[Race]] = {}
    for race in field:
        found.setdefault((race.family, race.profile, race.trace), []).append(race)
    return dict(sorted(found.items()))


# -- ratios ------------------------------------------------------------------------------------------------------------


def speedup(race: Race, rival: str, share: float, price: Price) -> tuple[float, bool]:
    theirs, _ = race.took(rival, share, price)
    ours, came = race.took(race.ours, share, price)
    return theirs.hours / ours.hours, came


def cost_ratio(race: Race, pick: Callable[..., str], share: float, price: Price) -> tuple[float, bool]:
    """Dollars of the cheapest or most expensive rival over ours."""
    dollars = {rival: race.took(rival, share, price)[0].dollars for rival in RIVALS if rival in race.cells}
    ours, came = race.took(race.ours, share, price)
    return dollars[pick(dollars, key=lambda rival: dollars[rival])] / ours.dollars, came


def cost_of(race: Race, rival: str, share: float, price: Price) -> tuple[float, bool]:
    theirs, _ = race.took(rival, share, price)
    ours, came = race.took(race.ours, share, price)
    return theirs.dollars / ours.dollars, came


Ratio = Callable[[Race, float, Price], tuple[float, bool]]
RATIOS: dict[str, Ratio] = {
    "speedup_vs_reserved_only": lambda race, share, price: speedup(race, BASELINE, share, price),
    "speedup_vs_spot_no_explore": lambda race, share, price: speedup(race, "spot-no-explore", share, price),
    "speedup_vs_on_demand_all": lambda race, share, price: speedup(race, "on-demand-all", share, price),
    "cost_ratio_vs_reserved_only": lambda race, share, price: cost_of(race, BASELINE, share, price),
    "cost_ratio_vs_on_demand_all": lambda race, share, price: cost_of(race, "on-demand-all", share, price),
    "cost_ratio_vs_cheapest": lambda race, share, price: cost_ratio(race, min, share, price),
    "cost_ratio_vs_dearest": lambda race, share, price: cost_ratio(race, max, share, price),
}

AGAINST = {
    "speedup_vs_spot_no_explore": "spot-no-explore",
    **dict.fromkeys(("speedup_vs_on_demand_all", "cost_ratio_vs_on_demand_all"), "on-demand-all"),
}
"""The rivals of some ratios, which need not have run."""


def ratios_of(field: Sequence[Race]) -> dict[str, Ratio]:
    """Ratios against the setups that ran in every race."""
    ratios = {name: ratio for name, ratio in RATIOS.items() if all(_ran(name, race) for race in field)}
    for rival in KIN:
        if rival != field[0].ours and all(rival in race.cells for race in field):
            name = rival.replace("-", "_")
            ratios[f"speedup_vs_{name}"] = partial(_sooner, rival)
            ratios[f"cost_ratio_vs_{name}"] = partial(_cheaper, rival)
    return ratios


def _ran(ratio: str, race: Race) -> bool:
    return AGAINST.get(ratio, BASELINE) in race.cells


def _sooner(rival: str, race: Race, share: float, price: Price) -> tuple[float, bool]:
    return speedup(race, rival, share, price)


def _cheaper(rival: str, race: Race, share: float, price: Price) -> tuple[float, bool]:
    return cost_of(race, rival, share, price)


def figure(found: Iterable[tuple[float, bool]], what: str) -> Figure:
    values, came = zip(*found, strict=True)
    missed = came.count(False)
    unit = f"{what}, co-simulated" + (f"; {missed} of {len(came)} did not reach the score" if missed else "")
    return Figure(value=geometric(values), low=min(values), high=max(values), unit=unit)


def geometric(values: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def overall(field: Sequence[Race], price: Price) -> dict[str, Figure]:
    figures = {}
    for (name, ratio), share in product(ratios_of(field).items(), SHARES):
        suffix = "" if share == 1 else f"_at_{share * 100:.0f}"
        what = "times" if share == 1 else f"times, at {share:.0%} of the gain"
        figures[f"{name}{suffix}"] = figure((ratio(race, share, price) for race in field), what)
    return figures | equal_hours(field, price)


def by_race(field: Sequence[Race], price: Price) -> dict[str, Figure]:
    figures = {}
    for (family, profile, trace), group in groups_of(field).items():
        for name, ratio in ratios_of(field).items():
            found = figure((ratio(race, 1.0, price) for race in group), "times")
            figures[f"{name} {family} {profile.rpartition('-')[2]} {trace}"] = found
    return figures


def by_seeds(field: Sequence[Race], price: Price) -> dict[str, Figure]:
    """Figures of the seeds that settings were chosen with and of the others, which no choice can favour."""
    figures = {}
    for name, is_swept in (("swept seeds", True), ("other seeds", False)):
        races = [race for race in field if (race.seed in SWEPT_SEEDS) is is_swept]
        for family in sorted({race.family for race in races}):
            found = [speedup(race, BASELINE, 1.0, price) for race in races if race.family == family]
            figures[f"speedup_vs_reserved_only {family}, {name}"] = figure(found, "times")
        if races:
            found = [speedup(race, BASELINE, 1.0, price) for race in races]
            figures[f"speedup_vs_reserved_only, {name}"] = figure(found, "times")
    return figures


def by_provider(field: Sequence[Race], prices: PriceTable) -> dict[str, Figure]:
    """Cost ratios by every price row with both prices; the largest names its rival."""
    figures = {}
    for name, row in sorted(prices.rows.items()):
        if row.spot_per_hour is None:
            continue
        for which, pick in (("cheapest", min), ("dearest", max)):
            rivals = sorted({_pick(race, pick, row) for race in field})
            what = f"times; {which} is {', '.join(rivals)} at ${row.on_demand_per_hour / row.gpus:.2f} per GPU-hour"
            what += f", spot ${row.spot_per_hour / row.gpus:.2f}"
            figures[f"cost_ratio_vs_{which} {name}"] = figure(
                (cost_ratio(race, pick, 1.0, row) for race in field), what
            )
    return figures


def _pick(race: Race, pick: Callable[..., str], price: Price) -> str:
    dollars = {rival: race.took(rival, 1.0, price)[0].dollars for rival in RIVALS if rival in race.cells}
    return pick(dollars, key=lambda rival: dollars[rival])


def equal_hours(field: Sequence[Race], price: Price) -> dict[str, Figure]:
    """Scores at the end of the shortest run of a race."""
    scores: dict[str, list[float]] = {}
    for race in field:
        curves = {setup: cell.curve(price) for setup, cell in race.cells.items()}
        hours = min(
            curve.points[-1].hours for setup, curve in curves.items() if setup in (race.ours, "spot-no-explore")
        )
        for setup, curve in curves.items():
            scores.setdefault(setup, []).append(score_at(curve, hours))
    figures = {}
    for setup, values in scores.items():
        if len(values) < len(field):
            # A mean over other races cannot be compared with these.
            continue
        name = "final_score_at_equal_hours" + ("" if setup == field[0].ours else f" {setup}")
        mean = math.fsum(values) / len(values)
        figures[name] = Figure(value=mean, low=min(values), high=max(values), unit="held-out reward, co-simulated")
    return figures


def score_at(curve: Curve, hours: float) -> float:
    """Score at `hours`, linear between evaluations."""
    before = curve.points[0]
    for point in curve.points[1:]:
        if point.hours >= hours:
            share = (hours - before.hours) / (point.hours - before.hours)
            return before.score + share * (point.score - before.score)
        before = point
    return before.score
