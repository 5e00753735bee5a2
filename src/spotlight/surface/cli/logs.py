"""`spotlight logs` and `spotlight watch`: a run of another terminal."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.surface.cli.hints import hint
from spotlight.surface.cli.report import Prices, RunName
from spotlight.surface.json_output import print_json
from spotlight.surface.plain_text import plain

if TYPE_CHECKING:
    from spotlight.folder import RunFolder

POLL_S = 0.5


def logs(
    run: RunName,
    worker: Annotated[
        list[str] | None, typer.Option(help="Only processes with this in their name: spot-1, controller, spot-2.1/0.1.")
    ] = None,
    lines: Annotated[int, typer.Option(min=0, help="Lines from the end of each log.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until the run ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Show the output of a run's processes. Controller, agents, workers, rewards, trackers."""
    from spotlight.folder import RunFolder
    from spotlight.surface.following import RunFollower
    from spotlight.surface.kept_view import latest
    from spotlight.surface.log_files import LogFiles, LogLine

    def show(line: LogLine) -> None:
        if as_json:
            print_json(line)
        else:
            print(f"{plain(line.process)} | {line.line}", flush=follow)

    folder = RunFolder.find(run)
    files = LogFiles(folder.path, tuple(worker or ()))
    if not follow:
        # A process that is named while it is followed may start later.
        files.check()
    for line in files.last(lines):
        show(line)
    if not follow:
        return
    follower = RunFollower(folder, latest(folder.journal))
    try:
        while True:
            for _ in follower.new():
                pass
            ended = follower.has_ended()
            for line in files.new():
                show(line)
            if ended:
                return
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        return


def watch(
    run: RunName,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per line, as with `spotlight train --json`.")
    ] = False,
    prices: Prices = None,
) -> None:
    """Watch a run of another terminal. The live panel of `train`, until the run ends; Ctrl-C leaves the run alone."""
    from spotlight.folder import RunFolder
    from spotlight.surface.cli.report import prices_for
    from spotlight.surface.following import RunFollower, view_to_follow
    from spotlight.surface.panel import Lines, Watcher, watcher
    from spotlight.surface.run_lines import JsonLines

    folder = RunFolder.find(run)
    table, view = prices_for(folder, prices), view_to_follow(folder)
    iterations = folder.read_config()["iterations"]
    follower, had_ended = RunFollower(folder, view), view.facts.stopped is not None
    watching: Watcher = JsonLines(folder.path, iterations, view, table) if as_json else watcher(iterations, table, view)
    try:
        with watching:
            follower.follow(watching.apply)
    except KeyboardInterrupt:
        hint("drain", folder.path, why="it goes on; this would stop it")
        return
    if not as_json:
        _show_end(folder, is_shown=isinstance(watching, Lines) and not had_ended and view.facts.stopped is not None)


def _show_end(folder: "RunFolder", is_shown: bool) -> None:
    """How the run ended, unless a line has shown it, and what to do next."""
    from spotlight.surface.kept_view import latest
    from spotlight.surface.liveness import State, standing_of

    standing = standing_of(latest(folder.journal), folder.path)
    if not is_shown:
        typer.echo(f"{standing.state.value}: {plain(standing.reason or 'all iterations are done')}")
    hint("report" if standing.state is State.FINISHED else "resume", folder.path)
