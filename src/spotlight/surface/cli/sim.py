"""`spotlight sim`: a run in virtual time, on the machines of a profile."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.surface.cli.overrides import Overrides, settings_of

if TYPE_CHECKING:
    from spotlight.control.market.prices import PriceTable
    from spotlight.folder import RunFolder
    from spotlight.sim.simulate import SimulationEnd
    from spotlight.surface.simulating import NumericsKind


def sim(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="Shipped recipes or YAML files, joined by +.")],
    profile: Annotated[str, typer.Option(help="Durations: a shipped profile or a JSON file.")],
    trace: Annotated[str | None, typer.Option(help="How spot machines come and go: a shipped trace or a file.")] = None,
    numerics: Annotated[str, typer.Option(help="model: drawn from a fit; real: a tiny model really trains.")] = "model",
    learning: Annotated[str | None, typer.Option(help="Fit for --numerics model; default by model and loss.")] = None,
    remember: Annotated[Path | None, typer.Option(help="With --numerics real: keep computed numbers here.")] = None,
    overrides: Overrides = None,
    prices: Annotated[Path | None, typer.Option(help="Price table as CSV; default is the shipped one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate a run: the real control plane, a virtual clock. Settings as with train."""
    from spotlight.control.market.prices import PriceTable
    from spotlight.control.profiles import Profile
    from spotlight.folder import RunFolder
    from spotlight.sim.simulate import Simulation, simulate
    from spotlight.surface.cli.progress import PatientProgress
    from spotlight.surface.simulating import Assumed, numerics_for, simulated_config

    kind = numerics_kind(numerics)
    assumed = Assumed(profile=Profile.load(profile), prices=PriceTable.load(prices), trace=trace)
    config = simulated_config(recipe, settings_of(overrides, context), assumed)
    with numerics_for(kind, config, learning, remember) as numbers, PatientProgress() as progress:
        folder = RunFolder.create(config.output, f"sim-{recipe.replace('/', '-')}")
        outcome = simulate(
            Simulation(
                config=config,
                recipe=recipe,
                profile=assumed.profile,
                numerics=numbers,
                prices=assumed.prices,
                progress=lambda done: progress.report("iterations", done, config.iterations),
            ),
            folder,
        )
    _show(outcome, folder, assumed.prices, as_json)


def numerics_kind(name: str) -> "NumericsKind":
    from spotlight.core.errors import InputError, suggestion
    from spotlight.surface.simulating import NumericsKind

    if name not in list(NumericsKind):
        raise InputError(f"there are no numerics '{name}': {suggestion(name, list(NumericsKind))}")
    return NumericsKind(name)


def _show(outcome: "SimulationEnd", folder: "RunFolder", prices: "PriceTable", as_json: bool) -> None:
    import msgspec

    from spotlight.surface.kept_view import latest
    from spotlight.surface.panel import panel
    from spotlight.surface.status import status

    view = latest(folder.journal)
    if as_json:
        found = {"outcome": outcome, "status": status(view, prices)}
        print(msgspec.json.encode(found).decode())
        return
    from rich.console import Console

    from spotlight.surface.cli.report import verdict, write

    iterations = folder.read_config()["iterations"]
    Console().print(panel(view, iterations, prices))
    typer.echo(f"{outcome.reason or 'all iterations are done'}: {outcome.seconds / 3600:.2f} simulated hours")
    typer.echo(f"report: {write(folder, prices)}")
    typer.echo(f"audit: {verdict(folder).sentences()[-1]}")
