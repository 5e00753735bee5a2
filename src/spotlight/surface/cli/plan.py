"""`spotlight plan`: what a run will take and cost by spot capacity, from a profile, before anything is started."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.core.errors import ConfigError, InputError
from spotlight.surface.cli.overrides import Overrides

if TYPE_CHECKING:
    from rich.console import Console

    from spotlight.config import RunConfig
    from spotlight.control.explore.config import ExploreConfig
    from spotlight.control.forecast import Fleet, Forecast, Rates, Workload
    from spotlight.control.market.prices import PriceTable
    from spotlight.control.profiles import Profile

SPOT_COUNTS = (0, 4, 8, 16)
"""Spot nodes that are compared when none are named, beside those of the recipe."""
OWN_PROFILES = {"words": "cpu-words", "qwen-image": "h200-qwen-image-512"}
"""The shipped profile of a model; a run of another one must be told which hardware to pretend."""


LINES: "Mapping[str, Callable[[Forecast], str]]" = {
    "roll out, s": lambda one: f"{one.phases.rollout:.1f}",
    "train, s": lambda one: f"{one.phases.train:.1f}",
    "wait for previews, s": lambda one: f"{one.phases.exploration:.1f}",
    "publish, s": lambda one: f"{one.phases.publish:.1f}",
    "evaluate, s": lambda one: f"{one.phases.evaluation:.1f}",
    "checkpoint, s": lambda one: f"{one.phases.checkpoint:.1f}",
    "iteration, s": lambda one: f"{one.seconds_per_iteration:.1f}",
    "previews that fit": lambda one: str(one.previews_fit),
    "previews done / planned": lambda one: f"{one.previews_finished} / {one.previews_planned}",
    "$ per iteration": lambda one: f"{one.dollars_per_iteration:.3g}",
    "hours": lambda one: f"{one.hours:.2f}",
    "$": lambda one: f"{one.dollars:.2f}",
}
"""The table, line by line."""


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
    """Forecast seconds, previews and dollars of a run at steady capacity, for several numbers of spot nodes."""
    from spotlight.config import load_config
    from spotlight.control.market.prices import PriceTable

    config = load_config(recipe, overrides or ())
    counts = spot_counts(config, spot or [], more_spot or [])
    pace, table = profile_of(config, profile), PriceTable.load(prices)
    forecasts = forecasts_of(config, recipe, pace, table, counts)
    if as_json:
        import msgspec

        about = {**_about(config, recipe, pace, table), "forecasts": forecasts}
        print(msgspec.json.encode(about).decode())
        return
    from rich.console import Console

    show(forecasts, _about(config, recipe, pace, table), Console())


def dry_run_lines(
    config: "RunConfig", recipe: str, profile: str | None, table: "PriceTable", console: "Console"
) -> None:
    """The forecast of this very run, where a profile is named or the model has one."""
    from spotlight.control.profiles import profile_names

    if profile is not None:
        _forecast_lines(config, recipe, profile, table, console)
    elif OWN_PROFILES.get(config.model.name) in profile_names():
        try:
            _forecast_lines(config, recipe, None, table, console)
        except ConfigError as problem:
            # Nobody asked for a forecast: that there is none must not refuse settings that are sound.
            console.print(f"no forecast: {problem}", highlight=False, soft_wrap=True)


def _forecast_lines(
    config: "RunConfig", recipe: str, profile: str | None, table: "PriceTable", console: "Console"
) -> None:
    pace = profile_of(config, profile)
    forecasts = forecasts_of(config, recipe, pace, table, [config.cluster.spot])
    show(forecasts, _about(config, recipe, pace, table), console)


def spot_counts(config: "RunConfig", first: Sequence[int], more: Sequence[int]) -> list[int]:
    """`--spot 0 4 8 16`: an option takes one value, so the others arrive as arguments after it."""
    if more and not first:
        raise InputError(f"'{more[0]}' is no option of plan; numbers of spot nodes follow --spot.")
    counts = {*first, *more} or {*SPOT_COUNTS, config.cluster.spot}
    if min(counts) < 0:
        raise InputError(f"--spot {min(counts)} is below 0, and nodes are counted from there; name 0 or more.")
    return sorted(counts)


def profile_of(config: "RunConfig", name: str | None) -> "Profile":
    from spotlight.control.profiles import Profile, profile_names

    model = config.model.name
    chosen = name or OWN_PROFILES.get(model)
    if chosen is None:
        raise ConfigError(
            f"no profile of the model '{model}' ships, so nobody knows how long its steps take; name the hardware to "
            f"pretend with --profile ({', '.join(profile_names())}), or measure it with `spotlight profile`."
        )
    return Profile.load(chosen)


def forecasts_of(
    config: "RunConfig", recipe: str, profile: "Profile", table: "PriceTable", counts: Sequence[int]
) -> "list[Forecast]":
    from spotlight.control.forecast import NEEDED, for_spot_counts

    profile.require(NEEDED, recipe)
    rates = rates_of(config, table, any(counts))
    return for_spot_counts(workload_of(config, profile), fleet_of(config, profile), profile, rates, counts)


def workload_of(config: "RunConfig", profile: "Profile") -> "Workload":
    """What the recipe asks for, as the forecast counts it; trained in batches that suit the profile, as simulated."""
    from spotlight.compute.train.config import BatchesOver
    from spotlight.control.forecast import Evaluations, Workload
    from spotlight.control.profiles import Operation, efficient_batch
    from spotlight.runtime.sim.profiled import TrainingCost

    rollout, cost = config.rollout, TrainingCost.of(config)
    timesteps = min(cost.timesteps, rollout.steps)
    return Workload(
        iterations=config.iterations,
        prompts=rollout.prompts,
        group_size=rollout.group_size,
        steps=rollout.steps,
        passes=_passes(rollout.guidance),
        timesteps=timesteps,
        forwards=cost.forwards,
        updates=config.train.updates_per_iteration,
        micro_batch=efficient_batch(profile, Operation.TRAIN_TIMESTEP),
        evaluation=Evaluations(
            every=config.eval.every,
            pictures=config.eval.prompts,
            steps=config.eval.steps,
            passes=_passes(config.eval.guidance),
        ),
        checkpoint_every=config.output.checkpoint_every,
        explore=_explored(config) if config.explores else None,
        runs=1 if cost.over is BatchesOver.PAIRS else timesteps,
        pipeline=config.pipeline,
    )


def fleet_of(config: "RunConfig", profile: "Profile") -> "Fleet":
    """The recipe's machines, each with as many rows as suit the profile."""
    from spotlight.control.forecast import Fleet
    from spotlight.control.profiles import Operation, efficient_batch

    cluster = config.cluster
    return Fleet(
        reserved=cluster.reserved,
        spot=cluster.spot,
        gang=cluster.gang,
        slots=cluster.slots,
        rows=efficient_batch(profile, Operation.DENOISE_STEP),
        scorers=max(1, config.reward.processes),
        spot_speed=cluster.spot_speed,
    )


def rates_of(config: "RunConfig", table: "PriceTable", with_spot: bool) -> "Rates":
    """Dollars per slot-hour; a row that is missing is told before anything is computed."""
    from spotlight.control.forecast import Rates
    from spotlight.core.work import SlotClass

    market = config.market
    return Rates(
        reserved=table[market.reserved_price].per_gpu_hour(SlotClass.RESERVED),
        spot=table[market.spot_price].per_gpu_hour(SlotClass.SPOT) if with_spot else None,
    )


def show(forecasts: "Sequence[Forecast]", about: dict[str, object], console: "Console") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    title = "{recipe} on {hardware}, at steady capacity".format(**about)
    console.print(title, highlight=False, soft_wrap=True)
    table = Table(box=SIMPLE_HEAD)
    table.add_column("spot nodes")
    for one in forecasts:
        table.add_column(str(one.spot), justify="right", no_wrap=True)
    for name, of in LINES.items():
        table.add_row(name, *map(of, forecasts))
    console.print(table)
    console.print(
        "Seconds, previews and $ per iteration; then {iterations} iterations. Dollars are priced as if the slots were "
        "{priced_as_if} (list {prices}, {prices_date}); durations are of the profile {profile} "
        "({profile_digest}).".format(**about),
        highlight=False,
        soft_wrap=True,
    )


def _about(config: "RunConfig", recipe: str, profile: "Profile", table: "PriceTable") -> dict[str, object]:
    """What the numbers rest on."""
    rows = sorted({config.market.reserved_price, config.market.spot_price})
    return {
        "recipe": recipe,
        "model": config.model.name,
        "profile": profile.name,
        "profile_digest": profile.digest,
        "profiled_model": profile.model,
        "hardware": profile.hardware,
        "iterations": config.iterations,
        "priced_as_if": " and ".join(rows),
        "prices": table.name,
        "prices_date": table.date,
        "prices_digest": table.digest,
    }


def _explored(config: "RunConfig") -> "ExploreConfig":
    """A deterministic run awaits every planned preview."""
    return config.explore.model_copy(update={"overrun": math.inf}) if config.deterministic else config.explore


def _passes(guidance: float) -> int:
    """Guidance needs a forward with the prompt and one without."""
    return 2 if guidance > 1 else 1
