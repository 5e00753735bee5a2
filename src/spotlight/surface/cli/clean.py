"""`spotlight clean`: frees the disk of what a run no longer needs."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.surface.cli.hints import hint
from spotlight.surface.cli.report import AsJson, RunName
from spotlight.surface.json_output import print_json
from spotlight.surface.plain_text import plain

if TYPE_CHECKING:
    from spotlight.folder import RunFolder
    from spotlight.surface.cleaning import CleanPlan


def clean(
    run: RunName,
    keep: Annotated[list[str] | None, typer.Option(help="Also keep images or logs; may be repeated.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete what a run no longer needs. Older checkpoints and weights, tensors, pictures, logs.

    Settings, journal, report, the last checkpoint and the newest weights stay.
    """
    from spotlight.core.errors import InputError
    from spotlight.core.journal import without_writer
    from spotlight.folder import RunFolder
    from spotlight.surface import cleaning
    from spotlight.surface.cli.progress import PatientProgress
    from spotlight.surface.cli.report import write

    folder = RunFolder.find(run)
    _check_not_live(folder)
    with without_writer(folder.journal):
        plan = cleaning.plan_clean(folder, keep or ())
        if not as_json:
            _print(plan)
        if plan.removals and not dry_run:
            if not yes and (as_json or not sys.stdin.isatty()):
                raise InputError(f"nothing of {folder.name} was deleted: no terminal can confirm it; add --yes.")
            if not yes and not typer.confirm(f"delete {_shown(plan.size)}?", err=True):
                raise typer.Exit
            with PatientProgress() as progress:
                progress.report("writing the report", 0, 1)
                # With the pictures, before they go.
                write(folder)
                progress.report("deleting", 0, 1)
                cleaning.clean(folder, plan)
    if as_json:
        _print_json(plan, is_deleted=not dry_run)
    elif plan.removals and not dry_run:
        typer.echo(f"deleted {_shown(plan.size)}")
        hint("report", folder.path, why="what is left of it")


def _check_not_live(folder: "RunFolder") -> None:
    from spotlight.core.errors import InputError
    from spotlight.surface.kept_view import latest
    from spotlight.surface.liveness import standing_of

    standing = standing_of(latest(folder.journal), folder.path)
    if standing.pid_alive:
        raise InputError(
            f"the run {folder.name} is {standing.state.value} (process {standing.pid}) and needs its files; stop it "
            f"with `spotlight drain {folder.word}` first."
        )


def _print(plan: "CleanPlan") -> None:
    if not plan.removals:
        typer.echo("nothing to delete: only what the run needs is left.")
        return
    by_what: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    for removal in plan.removals:
        by_what.setdefault(removal.what, []).append(removal.path)
        sizes[removal.what] = sizes.get(removal.what, 0) + removal.size
    for what, paths in by_what.items():
        shown = ", ".join(map(plain, paths[:3])) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
        typer.echo(f"{_shown(sizes[what]):>10}  {shown}: {what}")
    typer.echo(f"{_shown(plan.size):>10}  in all")


def _print_json(plan: "CleanPlan", is_deleted: bool) -> None:

    content = {"run": plan.run, "deleted": is_deleted, "bytes": plan.size, "removals": plan.removals}
    print_json(content)


def _shown(size: int) -> str:
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError
