"""`spotlight drain` and `spotlight drill`: orders to a live run on this machine."""

import time
from collections.abc import Iterator
from typing import Annotated

import typer

RECOVERY_S = 120.0
"""Time for which a drill is watched."""


def drain(run: Annotated[str, typer.Argument(help="Name or folder of a run.")]) -> None:
    """Stop a run at the end of its iteration, so that it can be resumed."""
    from spotlight.folder import RunFolder
    from spotlight.orders import DrainRun
    from spotlight.surface.ordering import order

    folder = RunFolder.find(run)
    typer.echo(order(folder, DrainRun()).sentence)


def drill(
    run: Annotated[str, typer.Argument(help="Name or folder of a run.")],
    share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the workers to kill; at least one.")] = 0.5,
    reserved: Annotated[bool, typer.Option("--reserved", help="Reserved workers too, the trainer included.")] = False,
) -> None:
    """Kill workers of a live run on purpose, and watch it recover."""
    from spotlight.core.events import Accepted, Released, WorkerJoined, WorkerLost
    from spotlight.core.journal import read
    from spotlight.folder import RunFolder
    from spotlight.orders import DrillRun
    from spotlight.surface.ordering import order

    folder = RunFolder.find(run)
    done = order(folder, DrillRun(share=share, reserved=reserved))
    typer.echo(f"{done.sentence}: {', '.join(done.workers)}")
    killed = set(done.workers)
    slots = {worker.rpartition(".")[0] for worker in killed}
    released: set[str] = set()
    for _ in _watching():
        since = list(read(folder.journal, after=done.seq - 1))
        lost = {e.worker for r in since if isinstance(e := r.event, WorkerLost)} & killed
        released |= {e.request for r in since if isinstance(e := r.event, Released)}
        back = {e.worker.rpartition(".")[0] for r in since if isinstance(e := r.event, WorkerJoined)} & slots
        accepted = {e.request for r in since if isinstance(e := r.event, Accepted)}
        if since and lost == killed and back == slots and released <= accepted:
            typer.echo(
                f"all {len(slots)} slots are back and the {len(released)} samples that were under way are finished "
                f"({since[-1].at - since[0].at:.1f} s after the kill); nothing was lost."
            )
            return
    typer.echo(f"still recovering after {RECOVERY_S:g} s: {len(back)} of {len(slots)} slots are back.")
    raise typer.Exit(1)


def _watching() -> Iterator[None]:
    deadline = time.monotonic() + RECOVERY_S
    while time.monotonic() < deadline:
        time.sleep(0.5)
        yield
