"""`spotlight plan`: time and cost of a run by spot capacity, simulated with a profile."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.core.errors import ConfigError, InputError
from spotlight.surface.cli.overrides import Overrides

if TYPE_CHECKING:
    from rich.console import Console

    from spotlight.config import RunConfig
    from spotlight.control.market.prices import PriceTable
    from spotlight.control.profiles import Profile
    from spotlight.surface.planning import Forecast
    from spotlight.surface.simulating import Assumed

SPOT_COUNTS = (0, 4, 8)
"""Numbers of spot nodes to compare if none are named and the recipe has none."""
OWN_PROFILES = {"words": "cpu-words"}
"""Profiles of models by name."""
GPU_PROFILES = {"qwen-image": ("h200-qwen-image-512", "h200-qwen-image-1280")}
"""Profiles of real families on a GPU; that of the nearest size is taken."""
"""The shipped profile of a model; any other model needs --profile."""


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
    recipe: Annotated[str, typer.Argument(help="Shipped recipes or YAML files, joined by +.")],
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
    """Simulate a few iterations at steady capacity for several numbers of spot nodes: seconds, previews, dollars."""
    from spotlight.config import load_config
    from spotlight.control.market.prices import PriceTable
    from spotlight.surface.simulating import Assumed

    config = load_config(recipe, overrides or ())
    counts = spot_counts(config, spot or [], more_spot or [])
    assumed = Assumed(profile=profile_of(config, profile), prices=PriceTable.load(prices))
    forecasts = forecasts_of(config, recipe, assumed, counts)
    about = _about(config, recipe, assumed)
    if as_json:
        import msgspec

        print(msgspec.json.encode({**about, "forecasts": forecasts}).decode())
        return
    from rich.console import Console

    show(forecasts, about, Console())


def dry_run_lines(
    config: "RunConfig", recipe: str, profile: str | None, table: "PriceTable", console: "Console"
) -> None:
    """Print the forecast of this run, if a profile is named or the model has one."""
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
    from spotlight.surface.simulating import Assumed

    assumed = Assumed(profile=profile_of(config, profile), prices=table)
    forecasts = forecasts_of(config, recipe, assumed, [config.cluster.spot])
    show(forecasts, _about(config, recipe, assumed), console)


def spot_counts(config: "RunConfig", first: Sequence[int], more: Sequence[int]) -> list[int]:
    """`--spot 0 4 8 16`: an option takes one value, so the others arrive as arguments after it."""
    if more and not first:
        raise InputError(f"'{more[0]}' is not an option of plan; numbers of spot nodes follow --spot.")
    if not first:
        return _usual_counts(config)
    counts = {*first, *more}
    if min(counts) < 0:
        raise InputError(f"--spot {min(counts)} is below 0, and nodes are counted from there; name 0 or more.")
    return sorted(counts)


def _usual_counts(config: "RunConfig") -> list[int]:
    """0, the recipe's own number and twice that, as far as the recipe can run with them."""
    from spotlight.surface.planning import short_run

    own, possible = config.cluster.spot, []
    for count in (0, own, 2 * own) if own else SPOT_COUNTS:
        with suppress(ConfigError):
            short_run(config, count)
            possible.append(count)
    return possible


def own_profile(config: "RunConfig") -> str | None:
    """Name of the shipped profile of this model on this device."""
    from spotlight.compute.models.catalogue import facts_of
    from spotlight.control.profiles import Profile

    if config.model.name in OWN_PROFILES or not config.model.is_on_gpu:
        return OWN_PROFILES.get(config.model.name)
    facts = facts_of(config.model.name)
    size = facts.size(config.data.size)
    fitting = {name: Profile.load(name) for name in GPU_PROFILES.get(facts.family, ())}
    pixels = size.height * size.width
    nearest = sorted(fitting, key=lambda name: abs(fitting[name].width * fitting[name].height - pixels))
    return nearest[0] if nearest else None


def profile_of(config: "RunConfig", name: str | None) -> "Profile":
    from spotlight.control.profiles import Profile, profile_names

    model = config.model.name
    chosen = name or own_profile(config)
    if chosen is None:
        raise ConfigError(
            f"no profile of the model '{model}' ships, so the seconds of its steps are not known; name the hardware to "
            f"pretend with --profile ({', '.join(profile_names())}), or measure it with `spotlight profile`."
        )
    return Profile.load(chosen)


def forecasts_of(config: "RunConfig", recipe: str, assumed: "Assumed", counts: Sequence[int]) -> "list[Forecast]":
    """One forecast per number of spot nodes; missing durations and prices are refused before any simulation."""
    from spotlight.sim.simulate import check
    from spotlight.surface.cli.progress import PatientProgress
    from spotlight.surface.planning import forecast, simulated_iterations

    check(config, assumed.profile, recipe)
    assumed.prices.require(config.market.billed_by(max(counts), config.cluster.fleet))
    total = simulated_iterations(config)
    with PatientProgress() as progress:
        return [
            forecast(config, recipe, count, assumed, partial(progress.report, f"spot nodes: {count}", total=total))
            for count in counts
        ]


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
