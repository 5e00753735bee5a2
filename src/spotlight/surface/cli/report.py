"""`spotlight report`, `status` and `audit`: three ways to read a run's journal, live or finished."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from spotlight.control.ledger.tally import AuditReport
    from spotlight.control.market.prices import PriceTable
    from spotlight.folder import RunFolder

RunName = Annotated[str, typer.Argument(help="Name or folder of a run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Prices = Annotated[Path | None, typer.Option(metavar="FILE", help="Price table as CSV; default is the shipped one.")]


def report(run: RunName, as_json: AsJson = False, prices: Prices = None) -> None:
    """Write the run's report as one self-contained HTML file; with --json, print where slot time went."""
    from spotlight.folder import RunFolder

    folder = RunFolder.find(run)
    page = write(folder, prices_for(folder, prices))
    if as_json:
        print(slot_time(folder, page))
    else:
        typer.echo(str(page))


def slot_time(folder: "RunFolder", page: Path) -> str:
    """Slot seconds by activity and class, of the run and of each iteration, as JSON."""
    import msgspec

    from spotlight.control.market.bubbles import bubbles_of
    from spotlight.surface.kept_view import latest

    found = bubbles_of(latest(folder.journal).meter)
    content = {"report": str(page), "idle_share": found.idle_shares(), **msgspec.structs.asdict(found)}
    return msgspec.json.encode(content).decode()


def status(run: RunName, as_json: AsJson = False, prices: Prices = None) -> None:
    """Show the state and progress of a run."""
    from spotlight.folder import RunFolder
    from spotlight.surface.kept_view import latest
    from spotlight.surface.liveness import standing_of
    from spotlight.surface.panel import panel
    from spotlight.surface.status import as_json as status_json

    folder = RunFolder.find(run)
    table = prices_for(folder, prices)
    view = latest(folder.journal)
    standing = standing_of(view, folder.path)
    if as_json:
        print(status_json(view, table, standing))
        return
    from rich.console import Console

    Console().print(panel(view, folder.read_config()["iterations"], table, standing))


def audit(run: RunName, as_json: AsJson = False) -> None:
    """Check from the journal alone that no sample was lost, doubled or trained wrongly, and that none is missing.

    Exit code 1 if the check fails.
    """
    from spotlight.folder import RunFolder

    found = verdict(RunFolder.find(run))
    if as_json:
        print(json.dumps({"clean": found.clean, "whole": found.whole, "sentences": found.sentences()}))
    else:
        for sentence in found.sentences():
            typer.echo(sentence)
    if not found.whole:
        raise typer.Exit(1)


def verdict(folder: "RunFolder") -> "AuditReport":
    from spotlight.control.ledger.audit import audit
    from spotlight.control.ledger.findings import Bounds
    from spotlight.control.pipeline.config import PipelineConfig
    from spotlight.core.journal import read

    config = folder.read_config()
    # Runs of versions without this section had no overlap.
    pipeline = PipelineConfig.model_validate(config.get("pipeline", {}))
    bounds = Bounds.promised(pipeline, config["cluster"]["commit_every"], bool(config["deterministic"]))
    return audit(read(folder.journal), bounds)


def prices_for(folder: "RunFolder", path: Path | None) -> "PriceTable":
    """The shipped table, or that of a file, which must have the machines of this run."""
    from spotlight.control.market.prices import PriceTable
    from spotlight.pools.config import MarketConfig, SpotGroup

    table = PriceTable.load(path)
    if path is not None:
        config = folder.read_config()
        fleet = [SpotGroup.model_validate(group) for group in config["cluster"].get("fleet", ())]
        table.require(MarketConfig.model_validate(config["market"]).billed_by(config["cluster"]["spot"], fleet))
    return table


def write(folder: "RunFolder", prices: "PriceTable | None" = None) -> Path:
    """Write the report of the journal's present records; default is the shipped price table."""
    from spotlight.control.market.prices import PriceTable
    from spotlight.surface.kept_view import latest
    from spotlight.surface.report.page import write_report

    view = latest(folder.journal)
    config = folder.read_config()
    # A page without captions is better than none.
    prompts = folder.read_prompts() if folder.prompts.exists() else None
    write_report(
        view,
        folder.path,
        folder.report,
        prices=prices or PriceTable.load(),
        prompts={prompt.id: prompt.text for prompt in prompts.held_out} if prompts else {},
        trained_on=len(prompts.shared(config["eval"]["prompts"])) if prompts else 0,
        verdict=verdict(folder),
    )
    return folder.report
