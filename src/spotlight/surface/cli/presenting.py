"""A run in this process from its start to its end: a live panel, plain lines or JSON lines, and a report."""

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from spotlight.surface.cli.hints import hint
from spotlight.surface.plain_text import plain

if TYPE_CHECKING:
    from spotlight.control.ledger.tally import AuditReport
    from spotlight.run import Run
    from spotlight.surface.metrics_server import MetricsServer
    from spotlight.surface.panel import Watcher
    from spotlight.surface.projections import RunView
    from spotlight.surface.track.tracker_processes import TrackerProcesses


@dataclass(frozen=True, kw_only=True)
class Presentation:
    """How a run is shown."""

    as_json: bool = False
    detached: int | None = None
    """Pipe to the process that started this one and waits for the line of `surface/background.py`."""
    prices: Path | None = None
    metrics: "MetricsServer | None" = None


def presentation(as_json: bool, detached: int | None, prices: Path | None, metrics_port: int | None) -> Presentation:
    """From the options of a verb; takes the port for metrics, or refuses."""
    from spotlight.surface.metrics_server import MetricsServer

    metrics = None if metrics_port is None else MetricsServer(metrics_port)
    return Presentation(as_json=as_json, detached=detached, prices=prices, metrics=metrics)


def watched(run: "Run", how: Presentation, trackers: "TrackerProcesses") -> None:
    """Execute the run, show it, and write a report at any end."""
    import asyncio

    from spotlight.surface.kept_view import latest, part_name

    view = latest(run.folder.journal)
    try:
        trackers.open(run.folder, run.config.output, how.prices)
    except BaseException as error:
        run.refuse(error)
        raise
    run.beside.append(trackers.watch)
    pipe = how.detached
    if pipe is not None:
        from spotlight.surface.background import detach

        os.set_inheritable(pipe, False)
        run.beside.append(lambda note: detach(run.folder, pipe))
    out = sys.stderr if how.as_json else sys.stdout
    print(f"run folder: {plain(run.folder.path)}", file=out)
    if how.metrics is not None:
        _serve(run, view, how.metrics)
        print(f"metrics: {how.metrics.url}", file=out)
    if run.devices.slots:
        print(run.devices, file=out)
    if pipe is None:
        hint("watch", run.folder.path, why="in another terminal; also status, drain")
    sys.stdout.flush()
    try:
        with _watcher(run, view, how) as watching:
            run.run_log.observers.append(watching.apply)
            run.announce = lambda line: print(plain(line), file=out, flush=True)
            run.run_log.projections[part_name()] = view.to_bytes
            asyncio.run(run.execute())
    except BaseException:
        # The error that stopped the run has priority; a report that cannot be written now can be made later.
        page = None
        with contextlib.suppress(Exception):
            page = _report(run)
        _show_end(run, view, page, None, how)
        raise
    page, found = _report(run), _verdict(run)
    _show_end(run, view, page, found, how)
    if not found.whole:
        raise typer.Exit(1)


def _serve(run: "Run", view: "RunView", server: "MetricsServer") -> None:
    """Serve the metrics of the view beside the run."""
    from spotlight.surface.liveness import standing_of
    from spotlight.surface.metrics import MetricSettings, measure, render

    settings = MetricSettings.of(run.config.model_dump(mode="json"))

    def text() -> str:
        standing = standing_of(view, run.folder.path)
        return render(measure(run.folder.name, view, standing, settings, run.prices))

    server.text = text
    run.beside.append(server.serve)


def _watcher(run: "Run", view: "RunView", how: Presentation) -> "Watcher":
    if how.as_json:
        from spotlight.surface.run_lines import JsonLines

        return JsonLines(run.folder.path, run.config.iterations, view, run.prices)
    from spotlight.surface.panel import watcher

    return watcher(run.config.iterations, run.prices, view, is_own=True)


def _report(run: "Run") -> Path:
    from spotlight.surface.cli.report import write

    return write(run.folder, run.prices)


def _verdict(run: "Run") -> "AuditReport":
    from spotlight.surface.cli.report import verdict

    return verdict(run.folder)


def _show_end(run: "Run", view: "RunView", page: Path | None, found: "AuditReport | None", how: Presentation) -> None:
    if how.as_json:
        from spotlight.surface.liveness import standing_of
        from spotlight.surface.run_lines import EndedLine, print_line

        standing = standing_of(view)
        ended = EndedLine(
            run=str(run.folder.path),
            state=standing.state,
            reason=standing.reason,
            report=None if page is None else str(page),
            clean=None if found is None else found.clean,
            whole=None if found is None else found.whole,
        )
        print_line(ended)
        return
    if page is not None:
        typer.echo(f"report: {plain(page)}")
    if found is None:
        return
    for sentence in found.gaps.sentences():
        typer.echo(plain(sentence))
    typer.echo(f"audit: {plain(found.sentences()[-1])}")
    hint("export", run.folder.path, why="weights for diffusers and ComfyUI")
