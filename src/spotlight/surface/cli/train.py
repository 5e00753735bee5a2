"""`spotlight train` and `spotlight resume`: a run on this machine, watched while it runs, with a report at its end."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.core.errors import ConfigError, InputError
from spotlight.surface.cli.plan import dry_run_lines
from spotlight.surface.cli.report import Prices

if TYPE_CHECKING:
    from spotlight.config import RunConfig
    from spotlight.run import Run

DEFAULT_RECIPE = "demo"

Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; may be repeated.")
]


def train(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="Shipped recipes or YAML files, joined by +.")] = DEFAULT_RECIPE,
    overrides: Overrides = None,
    pace: Annotated[
        str | None, typer.Option(metavar="PROFILE", help="Compute nothing: workers wait as long as this profile says.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved settings and a forecast, and stop.")
    ] = False,
    profile: Annotated[
        str | None, typer.Option(help="With --dry-run: durations to forecast by, a shipped profile or a JSON file.")
    ] = None,
    prices: Prices = None,
) -> None:
    """Post-train a model. Settings can be changed with --set section.key=value or --section.key value."""
    from spotlight.config import load_config
    from spotlight.control.market.prices import PriceTable

    arguments = list(context.args)
    if recipe.startswith("--"):
        # A flag in the recipe's place is a flag: the recipe was left out.
        arguments, recipe = [recipe, *arguments], DEFAULT_RECIPE
    paced = [] if pace is None else [f"cluster.pace={pace}"]
    config = load_config(recipe, [*(overrides or ()), *dotted(arguments), *paced])
    table = PriceTable.load(prices)
    if dry_run:
        from rich.console import Console

        print(json.dumps(config.model_dump(mode="json"), indent=2))
        # Beside the settings, not among them: standard output is one JSON object.
        dry_run_lines(config, recipe, profile, table, Console(stderr=True))
        return
    from spotlight.run import Run

    watched(Run.start(config, recipe, table))


def resume(
    run: Annotated[str, typer.Argument(help="Name or folder of a run.")],
    overrides: Overrides = None,
    prices: Prices = None,
) -> None:
    """Go on with a run that was stopped, killed, or lost its machine."""
    from spotlight.control.market.prices import PriceTable
    from spotlight.folder import RunFolder, check_unchanged
    from spotlight.run import Run

    folder = RunFolder.find(run)
    before = folder.read_config()
    config = resumed_config(before, overrides or [])
    check_unchanged(before, config.model_dump(mode="json"))
    watched(Run.resume(folder, config, PriceTable.load(prices)))


def watched(run: "Run") -> None:
    """Run it with a panel, and leave a report whatever happens."""
    from spotlight.surface.cli.report import verdict, write
    from spotlight.surface.kept_view import latest, part_name
    from spotlight.surface.panel import watcher

    view = latest(run.folder.journal)
    typer.echo(f"run folder: {run.folder.path}")
    if run.devices.slots:
        typer.echo(str(run.devices))
    try:
        with watcher(run.config.iterations, run.prices, view) as watching:
            run.chronicle.observers.append(watching.apply)
            run.chronicle.projections[part_name()] = view.to_bytes
            asyncio.run(run.execute())
    except BaseException:
        # Whatever stopped the run is what must be told; a report that cannot be written now can be made later.
        with contextlib.suppress(Exception):
            typer.echo(f"report: {write(run.folder, run.prices)}")
        raise
    typer.echo(f"report: {write(run.folder, run.prices)}")
    typer.echo(f"audit: {verdict(run.folder).sentences()[-1]}")


def resumed_config(before: dict[str, object], overrides: list[str]) -> "RunConfig":
    """The stored settings with overrides on top."""
    import tempfile

    from spotlight.config import load_config

    with tempfile.TemporaryDirectory() as folder:
        # JSON is YAML: the one loader checks both.
        path = Path(folder) / "resumed.yaml"
        path.write_text(json.dumps(before))
        return load_config(str(path), overrides)


def dotted(arguments: list[str]) -> list[str]:
    """`--section.key value` and `--section.key=value` as overrides."""
    overrides = []
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        name, equals, value = flag.removeprefix("--").partition("=")
        if not flag.startswith("--") or ("." not in name and name not in ("seed", "iterations", "deterministic")):
            raise InputError(f"'{flag}' is not an option here; change a setting with --section.key value.")
        if not equals:
            if not rest:
                raise ConfigError(f"'{flag}' has no value; write {flag} VALUE.")
            value = rest.pop(0)
        overrides.append(f"{name}={value}")
    return overrides
