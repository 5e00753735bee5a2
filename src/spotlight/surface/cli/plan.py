"""`spotlight plan`: time and cost of a run by spot capacity, simulated with a profile."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.core.errors import InputError
from spotlight.surface.cli.hints import hint
from spotlight.surface.cli.overrides import Overrides, RecipeName
from spotlight.surface.json_output import print_json

if TYPE_CHECKING:
    from rich.console import Console

    from spotlight.config import RunConfig
    from spotlight.control.market.prices import PriceTable
    from spotlight.surface.fallback_trade import TraceForecast
    from spotlight.surface.planning import Forecast
    from spotlight.surface.simulating import Assumed

LINES: "Mapping[str, Callable[[Forecast], str]]" = {
    "roll out, s": lambda one: f"{one.phases.rollout:.1f}",
    "train, s": lambda one: f"{one.phases.train:.1f}",
    "wait for previews, s": lambda one: f"{one.phases.exploration:.1f}",
    "publish, s": lambda one: f"{one.phases.publish:.1f}",
    "evaluate, s": lambda one: f"{one.phases.evaluation:.1f}",
    "checkpoint, s": lambda one: f"{one.phases.checkpoint:.1f}",
    "iteration, s": lambda one: f"{one.seconds_per_iteration:.1f}",
    "previews done / planned": lambda one: f"{one.previews_finished} / {one.previews_planned}",
    "$ per iteration": lambda one: f"{one.dollars_per_iteration:.3g}",
    "hours": lambda one: f"{one.hours:.2f}",
    "$": lambda one: f"{one.dollars:.2f}",
}
"""Rows of the table."""
TRADE_LINES: "Mapping[str, Callable[[TraceForecast], str]]" = {
    "mean spot nodes of {own}": lambda one: f"{one.spot:.1f}",
    "mean stand-ins": lambda one: f"{one.stand_ins:.1f}",
    "iteration, s": lambda one: f"{one.seconds_per_iteration:.1f}",
    "$ per iteration": lambda one: f"{one.dollars_per_iteration:.3g}",
    "hours": lambda one: f"{one.hours:.2f}",
    "$": lambda one: f"{one.dollars:.2f}",
}
"""Rows of the second table."""
TRADE_NOTE = (
    "At every instant of the trace the run has the rate of the slots that work then, interpolated between fleets. "
    "market.fallback_s=auto with budget.max_hours or budget.max_dollars rents only what the limits need and allow."
)
NOTES = (
    "Simulated with the profile {profile} ({profile_digest}) over {simulated_iterations} iterations per fleet; rewards "
    "are drawn from the fit {fit}.",
    "Seconds, previews and $ per iteration are means without the first two iterations and the last; hours and $ are "
    "of {iterations} iterations, where those that were not simulated take the mean.",
    "Dollars are priced as if the slots were {priced_as_if} (list {prices}, {prices_date}).",
    "Not simulated: spot nodes that are lost or late, and later iterations, which differ while a planner learns or "
    "iterations overlap; `spotlight sim` simulates a whole run, with a trace if you name one.",
)
"""Assumptions and limits of the figures, printed below the table."""


def plan(
    recipe: RecipeName,
    more_spot: Annotated[list[int] | None, typer.Argument(hidden=True)] = None,
    profile: Annotated[
        str | None, typer.Option(help="A shipped profile or a JSON file; default the model's own.")
    ] = None,
    prices: Annotated[Path | None, typer.Option(help="A price table of your own (CSV).")] = None,
    spot: Annotated[
        list[int] | None, typer.Option(min=0, metavar="N...", help="Numbers of spot nodes to compare: --spot 0 4 8 16.")
    ] = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Forecast time and cost by numbers of spot nodes. Simulates a few iterations at steady capacity for each.

    With market.trace also on that trace, without and with on-demand stand-ins.
    """
    from spotlight.config import load_config
    from spotlight.control.market.prices import PriceTable
    from spotlight.surface.fallback_trade import trade, trade_counts
    from spotlight.surface.fleets import profile_of
    from spotlight.surface.simulating import Assumed

    config = load_config(recipe, overrides or ())
    counts = spot_counts(config, spot or [], more_spot or [])
    assumed = Assumed(profile=profile_of(config, profile), prices=PriceTable.load(prices))
    forecasts = _forecasts(config, recipe, assumed, counts)
    on_trace = trade(config, _seconds(config, recipe, assumed, trade_counts(config)), assumed.prices)
    about = _about(config, recipe, assumed)
    if as_json:
        print_json({**about, "forecasts": forecasts, "on_trace": on_trace})
        return
    from spotlight.surface.terminal import terminal

    show(forecasts, about, terminal())
    if on_trace:
        show_trade(on_trace, config, terminal())
    hint("train", recipe, "--dry-run", why="settings, memory and checks of the run")


def dry_run_lines(
    config: "RunConfig", recipe: str, profile: str | None, table: "PriceTable", console: "Console"
) -> None:
    """Print the forecast of this run, if a profile is named or the model has one."""
    from spotlight.surface.fleets import own_profile

    if profile is not None:
        _forecast_lines(config, recipe, profile, table, console)
    elif own_profile(config) is not None:
        try:
            _forecast_lines(config, recipe, None, table, console)
        except InputError as problem:
            # The forecast was not requested, so its absence must not refuse settings that are sound.
            console.print(f"no forecast: {problem}", highlight=False, soft_wrap=True)


def _forecast_lines(
    config: "RunConfig", recipe: str, profile: str | None, table: "PriceTable", console: "Console"
) -> None:
    from spotlight.surface.fleets import profile_of
    from spotlight.surface.simulating import Assumed

    assumed = Assumed(profile=profile_of(config, profile), prices=table)
    forecasts = _forecasts(config, recipe, assumed, [config.cluster.spot])
    show(forecasts, _about(config, recipe, assumed), console)


def spot_counts(config: "RunConfig", first: Sequence[int], more: Sequence[int]) -> list[int]:
    """`--spot 0 4 8 16`: an option takes one value, so the others arrive as arguments after it."""
    from spotlight.surface.fleets import usual_counts

    if more and not first:
        raise InputError(f"'{more[0]}' is not an option of plan; numbers of spot nodes follow --spot.")
    if not first:
        return usual_counts(config)
    counts = {*first, *more}
    if min(counts) < 0:
        raise InputError(f"--spot {min(counts)} is below 0, and nodes are counted from there; name 0 or more.")
    return sorted(counts)


def _forecasts(config: "RunConfig", recipe: str, assumed: "Assumed", counts: Sequence[int]) -> "list[Forecast]":
    from spotlight.surface.cli.progress import PatientProgress
    from spotlight.surface.fleets import forecasts_of

    with PatientProgress() as progress:
        return forecasts_of(config, recipe, assumed, counts, progress.report)


def _seconds(config: "RunConfig", recipe: str, assumed: "Assumed", counts: Sequence[int]) -> dict[int, float]:
    from spotlight.surface.cli.progress import PatientProgress
    from spotlight.surface.fleets import seconds_by_presence

    with PatientProgress() as progress:
        return seconds_by_presence(config, recipe, assumed, counts, progress.report)


def show(forecasts: "Sequence[Forecast]", about: dict[str, object], console: "Console") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = "{recipe} on {hardware}, simulated at steady capacity".format(**about)
    console.print(title, highlight=False, soft_wrap=True)
    table = Table(box=SIMPLE_HEAD)
    table.add_column("spot nodes")
    for one in forecasts:
        table.add_column(str(one.spot), justify="right", no_wrap=True)
    for name, of in LINES.items():
        table.add_row(name, *map(of, forecasts))
    console.print(table)
    for line in NOTES:
        console.print(line.format(**about), highlight=False, soft_wrap=True)


def show_trade(rows: "Sequence[TraceForecast]", config: "RunConfig", console: "Console") -> None:
    """The run on its trace, without stand-ins and with them."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    market, own = config.market, config.cluster.spot
    title = f"On the trace {market.trace} from hour {market.start_h:g}, without and with on-demand stand-ins"
    console.print(title, highlight=False, soft_wrap=True)
    table = Table(box=SIMPLE_HEAD)
    table.add_column("market.fallback_s")
    for row in rows:
        name = "unset" if row.fallback_s is None else f"{row.fallback_s:g}"
        table.add_column(name, justify="right", no_wrap=True)
    for name, of in TRADE_LINES.items():
        table.add_row(name.format(own=own), *map(of, rows))
    console.print(table)
    console.print(TRADE_NOTE, highlight=False, soft_wrap=True)


def _about(config: "RunConfig", recipe: str, assumed: "Assumed") -> dict[str, object]:
    """The assumptions of the figures."""
    from spotlight.surface.planning import fit_of, simulated_iterations

    profile, prices = assumed.profile, assumed.prices
    rows = sorted({config.market.reserved_price, config.market.spot_price})
    return {
        "recipe": recipe,
        "model": config.model.name,
        "profile": profile.name,
        "profile_digest": profile.digest,
        "profiled_model": profile.model,
        "hardware": profile.hardware,
        "fit": fit_of(config),
        "iterations": config.iterations,
        "simulated_iterations": simulated_iterations(config),
        "priced_as_if": " and ".join(rows),
        "prices": prices.name,
        "prices_date": prices.date,
        "prices_digest": prices.digest,
    }
