"""Tables and pictures of the headline: ratios, the factors behind them, and the curves of every race."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

from benchmarks.headline.figures import BUSY, PRICED, RIVALS, Race, figure, geometric, groups_of, ratios_of
from benchmarks.headline.setups import BASELINE
from spotlight.control.market.prices import Price
from spotlight.surface.compare import Reached
from spotlight.surface.compare.plot import draw as draw_curves


def ratio_table(field: Sequence[Race], price: Price) -> Table:
    table = Table(title=f"{field[0].ours} against others, to the final score of {BASELINE}, priced as {PRICED}")
    ratios = ratios_of(field)
    for column in ("task", "profile", "trace", *ratios):
        table.add_column(column)
    for (family, profile, trace), group in groups_of(field).items():
        found = [figure((ratio(race, 1.0, price) for race in group), "") for ratio in ratios.values()]
        shown = [f"{one.value:.2f} ({one.low:.2f}..{one.high:.2f}){'*' if 'not' in one.unit else ''}" for one in found]
        table.add_row(family, profile, trace, *shown)
    table.caption = "*: not every run came there"
    return table


def factor_table(field: Sequence[Race], price: Price) -> Table:
    """Factors of the savings: iterations, seconds per iteration, price of the fleet."""
    table = Table(title=f"Factors of {BASELINE} over each setup, geometric mean")
    for column in ("task", "profile", "trace", "setup", "iterations", "s/iteration", "$/hour", "hours", "dollars"):
        table.add_column(column)
    for (family, profile, trace), group in groups_of(field).items():
        for setup in (*RIVALS[1:], *BUSY):
            members = [race for race in group if setup in race.cells]
            if members:
                table.add_row(family, profile.rpartition("-")[2], trace, setup, *_factors(members, setup, price))
    return table


def _factors(members: Sequence[Race], setup: str, price: Price) -> list[str]:
    pairs = [(race.took(BASELINE, 1.0, price)[0], race.took(setup, 1.0, price)[0]) for race in members]

    def ratio(value: Callable[[Reached], float]) -> str:
        return f"{geometric([value(theirs) / value(own) for theirs, own in pairs]):.2f}"

    return [
        ratio(lambda one: one.iterations),
        ratio(lambda one: one.hours / one.iterations),
        ratio(lambda one: one.dollars / one.hours),
        ratio(lambda one: one.hours),
        ratio(lambda one: one.dollars),
    ]


def draw(field: Sequence[Race], price: Price, out: Path) -> None:
    """Per task one picture: a row per profile, score against hours and dollars, the mean over seeds of one trace."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for (family, profile, trace), group in groups_of(field).items():
        setups = [setup for setup in (*RIVALS, *BUSY) if all(setup in race.cells for race in group)]
        curves = [race.cells[setup].curve(price) for setup in setups for race in group]
        size = profile.rpartition("-")[2]
        title = f"{family}, NFT, co-simulated: tiny model, clock of Qwen-Image 20 B at {size} on H200\ntrace {trace}"
        picture = out.with_name(f"{out.name}-{family}-{size}-{trace.partition('@')[0]}.png")
        draw_curves(curves, BASELINE, title, picture, price.name)
