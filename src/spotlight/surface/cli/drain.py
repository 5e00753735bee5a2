"""`spotlight drain` and `spotlight drill`: orders to a live run on this machine."""

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from spotlight.surface.cli.hints import hint
from spotlight.surface.cli.report import AsJson, RunName
from spotlight.surface.json_output import print_json

RECOVERY_S = 120.0
"""Time for which a drill is watched."""


def drain(run: RunName, as_json: AsJson = False) -> None:
    """Stop a run at the end of its iteration, resumably."""

    from spotlight.folder import RunFolder
    from spotlight.orders import DrainRun
    from spotlight.surface.ordering import order

    folder = RunFolder.find(run)
    done = order(folder, DrainRun())
    if as_json:
        print_json({"run": str(folder.path), "sentence": done.sentence})
        return
    typer.echo(done.sentence)
    hint("watch", run, why="until it has stopped; `spotlight resume` continues it")


def drill(
    run: RunName,
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the workers to kill; at least one.")] = 0.5,
    reserved: Annotated[bool, typer.Option("--reserved", help="Reserved workers too, the trainer included.")] = False,
    as_json: AsJson = False,
) -> None:
    """Kill workers of a live run, and watch it recover."""

    from spotlight.core.events import Accepted, Released, WorkerJoined, WorkerLost
    from spotlight.core.journal import read
    from spotlight.folder import RunFolder
    from spotlight.orders import DrillRun
    from spotlight.surface.cli.progress import PatientProgress
    from spotlight.surface.ordering import order

    folder = RunFolder.find(run)
    done = order(folder, DrillRun(share=share, reserved=reserved))
    typer.echo(f"{done.sentence}: {', '.join(done.workers)}", err=as_json)
    killed = set(done.workers)
    slots = {worker.rpartition(".")[0] for worker in killed}
    released: set[str] = set()
    with PatientProgress() as progress:
        for _ in _watching():
            since = list(read(folder.journal, after=done.seq - 1))
            lost = {e.worker for r in since if isinstance(e := r.event, WorkerLost)} & killed
            released |= {e.request for r in since if isinstance(e := r.event, Released)}
            back = {e.worker.rpartition(".")[0] for r in since if isinstance(e := r.event, WorkerJoined)} & slots
            accepted = {e.request for r in since if isinstance(e := r.event, Accepted)}
            progress.report("slots that are back", len(back), len(slots))
            recovered = bool(since) and lost == killed and back == slots and released <= accepted
            if recovered:
                break
    seconds = since[-1].at - since[0].at if since else 0.0
    if as_json:
        content = {"workers": done.workers, "recovered": recovered, "seconds": seconds, "samples": len(released)}
        print_json(content)
    elif recovered:
        typer.echo(
            f"all {len(slots)} slots are back and the {len(released)} samples that were under way are finished "
            f"({seconds:.1f} s after the kill); nothing was lost."
        )
        hint("status", run)
    else:
        typer.echo(f"still recovering after {RECOVERY_S:g} s: {len(back)} of {len(slots)} slots are back.")
        hint("watch", run)
    if not recovered:
        raise typer.Exit(1)


def _watching() -> Iterator[None]:
    deadline = time.monotonic() + RECOVERY_S
    while time.monotonic() < deadline:
        time.sleep(0.5)
        yield
