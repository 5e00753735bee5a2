"""`spotlight report`, `status` and `audit`: three ways to read a run's journal, live or finished."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.surface.cli import completions
from spotlight.surface.cli.hints import hint
from spotlight.surface.json_output import print_json
from spotlight.surface.plain_text import plain

if TYPE_CHECKING:
    from spotlight.control.ledger.tally import AuditReport
    from spotlight.control.market.prices import PriceTable
    from spotlight.folder import RunFolder

RunName = Annotated[str, typer.Argument(help="Name or folder of a run.", autocompletion=completions.runs)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Prices = Annotated[Path | None, typer.Option(metavar="FILE", help="Price table as CSV; default is the shipped one.")]

NEXT = {
    "starting": ("watch", "live, until it ends"),
    "running": ("watch", "live, until it ends"),
    "draining": ("watch", "until it has stopped"),
    "stopped": ("resume", "continues it"),
    "dead": ("resume", "continues it"),
    "failed": ("logs", "what its processes reported"),
    "finished": ("export", "weights for diffusers and ComfyUI"),
}
"""What to do with a run, by its state."""


def report(run: RunName, as_json: AsJson = False, prices: Prices = None) -> None:
    """Write the report as one HTML file. With --json, print where slot time went."""
    from spotlight.folder import RunFolder
    from spotlight.surface.cli.progress import PatientProgress

    folder = RunFolder.find(run)
    with PatientProgress() as progress:
        progress.report("writing the report", 0, 1)
        page = write(folder, prices_for(folder, prices))
    if as_json:
        print_json(slot_time(folder, page))
    else:
        typer.echo(plain(page))
        hint("export", run, why="weights for diffusers and ComfyUI")


def slot_time(folder: "RunFolder", page: Path) -> dict[str, object]:
    """Slot seconds by activity and class, of the run and of each iteration."""
    import msgspec

    from spotlight.control.market.bubbles import bubbles_of
    from spotlight.surface.kept_view import latest

    found = bubbles_of(latest(folder.journal).meter)
    return {"report": str(page), "idle_share": found.idle_shares(), **msgspec.structs.asdict(found)}


def status(run: RunName, as_json: AsJson = False, prices: Prices = None) -> None:
    """Show the state and progress of a run."""
    from spotlight.folder import RunFolder
    from spotlight.surface.kept_view import latest
    from spotlight.surface.liveness import standing_of
    from spotlight.surface.panel import panel
    from spotlight.surface.status import status as status_of

    folder = RunFolder.find(run)
    table = prices_for(folder, prices)
    view = latest(folder.journal)
    standing = standing_of(view, folder.path)
    if as_json:
        print_json(status_of(view, table, standing))
        return
    from spotlight.surface.terminal import terminal

    terminal().print(panel(view, folder.read_config()["iterations"], table, standing))
    verb, why = NEXT[standing.state.value]
    hint(verb, run, why=why)


def audit(run: RunName, as_json: AsJson = False) -> None:
    """Check that no sample was lost or trained twice. From the journal alone; also names those that are missing.

    Exit code 1 if the check fails.
    """
    from spotlight.folder import RunFolder
    from spotlight.surface.cli.progress import PatientProgress

    with PatientProgress() as progress:
        progress.report("reading the journal", 0, 1)
        found = verdict(RunFolder.find(run))
    if as_json:
        print_json({"clean": found.clean, "whole": found.whole, "sentences": found.sentences()})
    else:
        for sentence in found.sentences():
            typer.echo(plain(sentence))
        hint("report", run)
    if not found.whole:
        raise typer.Exit(1)


def verdict(folder: "RunFolder") -> "AuditReport":
    from spotlight.control.ledger.audit import audit
    from spotlight.core.journal import read
    from spotlight.surface.auditing import bounds_of

    return audit(read(folder.journal), bounds_of(folder.read_config()))


def prices_for(folder: "RunFolder", path: Path | None) -> "PriceTable":
    """The shipped table, or that of a file, which must have the machines of this run."""
    from spotlight.control.market.prices import PriceTable

    table = PriceTable.load(path)
    if path is not None:
        from spotlight.pools.config import MarketConfig

        config = folder.read_config()
        table.require(MarketConfig.model_validate(config["market"]).billed_by(config["cluster"]["spot"]))
    return table


def write(folder: "RunFolder", prices: "PriceTable | None" = None) -> Path:
    """Write the report of the journal's present records; default is the shipped price table."""
    from spotlight.control.market.prices import PriceTable
    from spotlight.surface.kept_view import latest
    from spotlight.surface.panels.run_panels import setting_of
    from spotlight.surface.report.report_page import write_report

    write_report(
        latest(folder.journal),
        folder.path,
        folder.report,
        prices=prices or PriceTable.load(),
        setting=setting_of(folder),
        verdict=verdict(folder),
    )
    return folder.report
