"""`spotlight sim`: a run in virtual time, on the machines of a profile."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.surface.cli.hints import hint
from spotlight.surface.cli.overrides import Overrides, RecipeName, settings_of
from spotlight.surface.json_output import print_json
from spotlight.surface.plain_text import plain

if TYPE_CHECKING:
    from spotlight.control.market.prices import PriceTable
    from spotlight.folder import RunFolder
    from spotlight.sim.simulate import SimulationEnd


def sim(
    context: typer.Context,
    recipe: RecipeName,
    profile: Annotated[str, typer.Option(help="Durations: a shipped profile or a JSON file.")],
    trace: Annotated[
        str | None, typer.Option(help="How spot machines come and go: shipped traces or files, A+B.")
    ] = None,
    numerics: Annotated[str, typer.Option(help="model: drawn from a fit; real: a tiny model really trains.")] = "model",
    learning: Annotated[str | None, typer.Option(help="Fit for --numerics model; default by model and loss.")] = None,
    remember: Annotated[Path | None, typer.Option(help="With --numerics real: keep computed numbers here.")] = None,
    overrides: Overrides = None,
    prices: Annotated[Path | None, typer.Option(help="Price table as CSV; default is the shipped one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate a run in virtual time. The real control plane with durations of a profile; settings as with train."""
    from spotlight.control.market.prices import PriceTable
    from spotlight.control.profiles import Profile
    from spotlight.folder import RunFolder
    from spotlight.surface.cli.progress import PatientProgress
    from spotlight.surface.simulating import Assumed, NumericsKind, SimulationOrder, simulate_recipe

    order = SimulationOrder(
        recipe=recipe,
        overrides=settings_of(overrides, context),
        assumed=Assumed(profile=Profile.load(profile), prices=PriceTable.load(prices), trace=trace),
        kind=NumericsKind.named(numerics),
        learning=learning,
        remember=remember,
    )
    with PatientProgress() as progress:
        outcome = simulate_recipe(order, progress.report)
    _show(outcome, RunFolder(Path(outcome.folder)), order.assumed.prices, as_json)


def _show(outcome: "SimulationEnd", folder: "RunFolder", prices: "PriceTable", as_json: bool) -> None:

    from spotlight.surface.kept_view import latest
    from spotlight.surface.panel import panel
    from spotlight.surface.status import status

    view = latest(folder.journal)
    if as_json:
        found = {"outcome": outcome, "status": status(view, prices)}
        print_json(found)
        return
    from spotlight.surface.cli.report import verdict, write
    from spotlight.surface.terminal import terminal

    iterations = folder.read_config()["iterations"]
    terminal().print(panel(view, iterations, prices))
    typer.echo(f"{outcome.reason or 'all iterations are done'}: {outcome.seconds / 3600:.2f} simulated hours")
    typer.echo(f"report: {write(folder, prices)}")
    typer.echo(f"audit: {plain(verdict(folder).sentences()[-1])}")
    hint("status", folder.path)
