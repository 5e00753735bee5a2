"""A comparison as two tables: the cost of each setup, and the factors of its savings."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from spotlight.surface.compare.comparison import Comparison, Milestone, Spread

NOT_REACHED = "-"


def show(comparison: Comparison, console: Console, priced_as_if: str) -> None:
    """Print the tables; `priced_as_if` is the name of the price table."""
    score, baseline = comparison.score, comparison.baseline
    seeds = ", ".join(map(str, comparison.seeds))
    _print(console, f"Held-out {score} against {baseline}, seeds {seeds}: mean, and least..most of them")
    console.print(_taken(comparison))
    console.print(_saved(comparison))
    _print(
        console,
        f"gain: from the base model to the final score of {baseline} with the same seed. saved: {baseline} over the "
        f"setup, above 1 is better; hours = iterations x s/iteration, $ = hours x $/hour. Dollars are priced as if, "
        f"{priced_as_if}. {NOT_REACHED}: not reached by every seed.",
    )


def _taken(comparison: Comparison) -> Table:
    table = _table("setup", "gain", comparison.score, "seeds", "iterations", "hours", "$")
    for one in comparison.milestones:
        table.add_row(
            one.setup,
            f"{one.share:.0%}",
            f"{one.target.mean:.3f}",
            f"{one.reached} of {one.seeds}",
            _spread(one.iterations, 1),
            _spread(one.hours, 2),
            _spread(one.dollars, 2),
        )
    return table


def _saved(comparison: Comparison) -> Table:
    table = _table("saved by", "gain", "iterations", "s/iteration", "$/hour", "hours", "$")
    for one in comparison.milestones:
        if one.setup != comparison.baseline:
            table.add_row(one.setup, f"{one.share:.0%}", *_factors(one))
    return table


def _factors(one: Milestone) -> list[str]:
    factors = one.factors
    if factors is None:
        return [NOT_REACHED] * 5
    parts = (
        factors.iterations, factors.seconds_per_iteration, factors.fleet_price, factors.hours, factors.dollars,
    )  # fmt: skip
    return [_spread(part, 2) for part in parts]


def _spread(value: Spread | None, digits: int) -> str:
    if value is None:
        return NOT_REACHED
    mean, low, high = (f"{part:.{digits}f}" for part in (value.mean, value.low, value.high))
    # Under the mean, to keep columns narrow.
    return mean if low == high else f"{mean}\n{low}..{high}"


def _table(*names: str) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)
