"""The `spotlight` command. Verbs import heavy modules only after their arguments are parsed.

Exit codes: 0 done; 1 a run with a missing group or evaluation or a broken invariant, or a defect of Spotlight; 2 the
user's input; 3 the environment; 4 stopped, and resumable.
"""

import os
import sys
from typing import Annotated

import typer

from spotlight import __version__
from spotlight.core.errors import SpotlightError
from spotlight.surface.cli import (
    clean,
    compare,
    dashboard,
    doctor,
    drain,
    evaluate,
    export,
    join,
    logs,
    plan,
    pretrain,
    profile,
    report,
    rewards,
    runs,
    sample,
    sim,
    train,
)
from spotlight.surface.cli.overrides import SettingsCommand
from spotlight.surface.plain_text import plain_lines

ANY_SETTING = {"allow_extra_args": True, "ignore_unknown_options": True}
"""For verbs that take --section.key value."""

app = typer.Typer(
    name="spotlight",
    help="Reinforcement-learning post-training of Diffusion Transformers on reserved and spot GPUs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("train", cls=SettingsCommand, context_settings=ANY_SETTING)(train.train)
app.command("doctor", cls=SettingsCommand)(doctor.doctor)
app.command("resume", cls=SettingsCommand)(train.resume)
app.command("list")(runs.list_runs)
app.command("status")(report.status)
app.command("report")(report.report)
app.command("dashboard")(dashboard.dashboard)
app.command("audit")(report.audit)
app.command("watch")(logs.watch)
app.command("logs")(logs.logs)
app.command("clean")(clean.clean)
app.command("drain")(drain.drain)
app.command("drill")(drain.drill)
app.command("join")(join.join)
app.command("token")(join.token)
app.command("pretrain")(pretrain.pretrain)
app.command("profile")(profile.profile)
app.command("plan", cls=SettingsCommand)(plan.plan)
app.command("sim", cls=SettingsCommand, context_settings=ANY_SETTING)(sim.sim)
app.command("compare", cls=SettingsCommand, context_settings=ANY_SETTING)(compare.compare)
app.command("evaluate")(evaluate.evaluate)
app.command("sample")(sample.sample)
app.command("export")(export.export)
app.command("rewards")(rewards.rewards)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Options before the verb."""


def main() -> None:
    """Entry point: expected errors become one sentence and an exit code; SPOTLIGHT_DEBUG=1 shows the trace."""
    try:
        app()
    except SpotlightError as error:
        if os.environ.get("SPOTLIGHT_DEBUG"):
            raise
        print(f"spotlight: {plain_lines(error)}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
