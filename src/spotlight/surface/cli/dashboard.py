"""`spotlight dashboard`: the live page of all runs of a folder, or of one run."""

import os
from pathlib import Path
from typing import Annotated

import typer

from spotlight.surface.cli.report import AsJson, Prices

TOKEN_VARIABLE = "SPOTLIGHT_DASHBOARD_TOKEN"


def dashboard(
    place: Annotated[str, typer.Argument(metavar="[RUNS|RUN]", help="Folder of all runs, or one run.")] = "runs",
    host: Annotated[
        str, typer.Option(help="Address to listen at; other than this machine needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Default: the first free one from 8420.")] = None,
    browser: Annotated[bool, typer.Option("--open", help="Also open the page in a browser.")] = False,
    prices: Prices = None,
    as_json: AsJson = False,
) -> None:
    """Serve the live page: timeline, scores, exploration, cost, pictures. It only reads; any number may run.

    Beyond this machine a token is needed: SPOTLIGHT_DASHBOARD_TOKEN, or a new one that is printed.
    """
    from spotlight.control.market.prices import PriceTable
    from spotlight.surface.dashboard.serving import as_line, serve

    table, token = PriceTable.load(prices), os.environ.get(TOKEN_VARIABLE) or None

    def announce(address: str, given: str | None) -> None:
        if as_json:
            print(as_line(address, given), flush=True)
            return
        typer.echo(f"Spotlight: {address}")
        typer.echo("Ctrl-C ends the page, not the runs.")

    serve(folder_of(place), table, host, port, token, announce, is_opened=browser)


def folder_of(place: str) -> Path:
    """The folder of runs, or of one run by path or name; the default may not exist yet."""
    from spotlight.core.errors import InputError
    from spotlight.core.run_files import RUNS, find_run

    found = find_run(place)
    if found is not None:
        return found
    path = Path(place)
    if path.is_dir() or place == RUNS:
        return path
    raise InputError(
        f"there is no run and no folder '{place}'; name a run, or the folder of all runs, which is `{RUNS}` by default."
    )
