"""A real run whose training workers kill themselves in chosen phases of a step, by a list of fates in a folder.

    python doomed_ranks.py FOLDER train recipe.yaml ...     # as `spotlight train recipe.yaml ...`

Each file in the folder is one fate, `NNN-PHASE-RANK`. A worker that reaches the phase of the first file, as that rank,
deletes the file and kills itself with SIGKILL, so every fate happens once and in order.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

FATES = "SPOTLIGHT_TEST_FATES"
PHASES = ("waiting", "forward", "backward", "exchange", "clip", "step", "snapshot", "publication")


def write_fates(folder: Path, fates: Sequence[tuple[str, int]]) -> None:
    folder.mkdir()
    for number, (phase, rank) in enumerate(fates):
        (folder / f"{number:03d}-{phase}-{rank}").touch()


def main() -> None:
    """The command line, with workers from this module."""
    from spotlight.run import Run
    from spotlight.surface.cli.main import main as spotlight

    os.environ[FATES] = sys.argv.pop(1)
    plain = Run.pool_settings

    def doomed(self: Run, token: str) -> Any:
        return replace(plain(self, token), entry="doomed_ranks:entry")

    Run.pool_settings = doomed  # type: ignore[method-assign]
    spotlight()


def entry(worker: Any, sock: socket.socket, config: bytes) -> None:
    """Entry point of a forked worker."""
    from spotlight.node.worker import Worker
    from spotlight.node.worker import entry as plain

    rank = Rank(Path(os.environ[FATES]))
    rank.install(Worker)
    plain(worker, sock, config)


class Rank:
    """This process's rank, and its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.number: int | None = None

    def reached(self, phase: str) -> None:
        first = min(self._folder.iterdir(), default=None)
        if self.number is None or first is None or first.name.split("-")[1:] != [phase, str(self.number)]:
            return
        first.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

    def install(self, worker: type) -> None:
        import torch

        from spotlight.compute.parallel.gang_group import GangGroup
        from spotlight.compute.train import checkpoint
        from spotlight.compute.train.role import TrainingRole
        from spotlight.core import messages as m

        form, obey, wait = TrainingRole.form, TrainingRole.obey, worker._wait

        def formed(role: Any, order: m.FormGang) -> Any:
            self.number = order.rank
            return form(role, order)

        def obeyed(role: Any, order: Any) -> Any:
            if isinstance(order, m.Publish):
                self.reached("publication")
            return obey(role, order)

        def waited(self_: Any, seconds: float | None) -> None:
            self.reached("waiting")
            wait(self_, seconds)

        TrainingRole.form, TrainingRole.obey, worker._wait = formed, obeyed, waited
        backward = torch.Tensor.backward

        def doomed_backward(loss: torch.Tensor, *arguments: Any, **options: Any) -> None:
            self.reached("forward")
            loss.register_hook(lambda gradient: self.reached("backward"))
            backward(loss, *arguments, **options)

        torch.Tensor.backward = doomed_backward
        self._after(GangGroup, "_sum", "exchange")
        self._before(torch.nn.utils, "clip_grad_norm_", "clip")
        self._after(torch.optim.AdamW, "step", "step")
        self._before(checkpoint, "snapshot", "snapshot")

    def _before(self, owner: Any, name: str, phase: str) -> None:
        plain = getattr(owner, name)

        def doomed(*arguments: Any, **options: Any) -> Any:
            self.reached(phase)
            return plain(*arguments, **options)

        setattr(owner, name, doomed)

    def _after(self, owner: Any, name: str, phase: str) -> None:
        plain: Callable[..., Any] = getattr(owner, name)

        def doomed(*arguments: Any, **options: Any) -> Any:
            made = plain(*arguments, **options)
            self.reached(phase)
            return made

        setattr(owner, name, doomed)


if __name__ == "__main__":
    main()
