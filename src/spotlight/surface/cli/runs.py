"""`spotlight list`: all runs of a folder, with their states."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.surface.cli.hints import hint
from spotlight.surface.cli.report import AsJson
from spotlight.surface.json_output import print_json

if TYPE_CHECKING:
    from spotlight.folder import RunFolder
    from spotlight.surface.liveness import RunStanding
    from spotlight.surface.projections import RunView

Folder = Annotated[str, typer.Argument(help="Folder of all runs.")]


def list_runs(folder: Folder = "runs", as_json: AsJson = False) -> None:
    """List the runs of a folder. State, iterations, score, and why each stopped."""
    from spotlight.core.errors import InputError
    from spotlight.folder import RunFolder
    from spotlight.surface.cli.progress import PatientProgress
    from spotlight.surface.kept_view import latest
    from spotlight.surface.liveness import standing_of

    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"there is no folder {folder}, so there are no runs in it; start one with `spotlight train`.")
    found = []
    runs = [RunFolder(config.parent) for config in sorted(root.glob("*/config.json"))]
    with PatientProgress() as progress:
        for number, run in enumerate(runs):
            progress.report("reading runs", number, len(runs))
            try:
                view = latest(run.journal)
                found.append(_row(run, view, standing_of(view, run.path)))
            except InputError as error:
                found.append(_unreadable(run, str(error)))
    if as_json:
        print_json(found)
        return
    _print(found, folder)


def _unreadable(run: "RunFolder", reason: str) -> dict[str, object]:
    """The row of a folder that is not, or not yet, a whole run."""
    unknown = ("last_progress_s", "waiting_for", "recipe", "iterations", "of", "score", "value", "whole")
    return {
        "run": run.name, "state": "unreadable", "reason": reason, "pid_alive": False, **dict.fromkeys(unknown)
    }  # fmt: skip


def _row(run: "RunFolder", view: "RunView", standing: "RunStanding") -> dict[str, object]:
    name = view.headline()
    curve = view.curve(name) if name is not None else []
    return {
        "run": run.name,
        "state": standing.state.value,
        "reason": standing.reason,
        "pid_alive": standing.pid_alive,
        "last_progress_s": standing.last_progress_s,
        "waiting_for": standing.waiting_for,
        "recipe": view.facts.recipe,
        "iterations": len(view.iterations),
        "of": run.read_config()["iterations"],
        "score": name,
        "value": curve[-1][1].value if curve else None,
        "whole": view.gaps.whole,
    }


def _print(found: list[dict[str, object]], folder: str) -> None:
    from rich.table import Table

    from spotlight.surface.formats import duration, score, score_name
    from spotlight.surface.terminal import terminal

    if not found:
        typer.echo("no runs yet; start one with `spotlight train`.")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("run", "state", "iterations", "held out", "last progress", "reason, or what it waits for"):
        table.add_column(column, overflow="fold")
    for row in found:
        value, since = row["value"], row["last_progress_s"]
        table.add_row(
            str(row["run"]),
            str(row["state"]) + (", incomplete" if row["whole"] is False else ""),
            f"{row['iterations']}/{row['of']}" if row["of"] is not None else "–",
            f"{score_name(str(row['score']))} {score(value)}" if isinstance(value, float) else "–",
            f"{duration(since)} ago" if isinstance(since, float) else "–",
            str(row["reason"] or row["waiting_for"] or ""),
        )
    terminal().print(table)
    hint("status", found[-1]["run"] if folder == "runs" else f"{folder}/{found[-1]['run']}")
