"""Weights & Biases, online or offline: WANDB_MODE=offline needs no account and writes to RUN/trackers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spotlight.control.market.bill import Bill
from spotlight.core.errors import EnvironmentProblem
from spotlight.surface.track.tracker import BILL_COLUMNS, TrackedPicture, TrackedRun, bill_rows

STEP = "iteration"
ANSWER_S = 30.0
"""Wait for the service at the start."""


class WandbTracker:
    def __init__(self) -> None:
        self._run: Any = None
        self._folder = Path()

    def prepare(self) -> None:
        import wandb

        settings = wandb.setup().settings
        if settings.mode in ("online", "run", "shared") and not wandb.login(prompt=False, verify=False):
            raise EnvironmentProblem(
                "output.trackers has wandb, but there is no API key of Weights & Biases on this machine; log in with "
                "`wandb login`, or set WANDB_MODE=offline, which needs no account."
            )

    def open(self, run: TrackedRun) -> None:
        import wandb

        run.own_folder.mkdir(parents=True, exist_ok=True)
        quiet = wandb.Settings(
            console="off",
            silent=True,
            symlink=False,
            disable_git=True,
            save_code=False,
            x_disable_stats=True,
            init_timeout=ANSWER_S,
        )
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=run.id,
            resume="allow",
            dir=str(run.own_folder),
            config=run.settings,
            settings=quiet,
        )
        self._folder = run.own_folder
        self._remove_links()
        # Its own steps only ever grow, but an iteration may be repeated after a restore.
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({STEP: step, **values})

    def pictures(self, step: int, pictures: Sequence[TrackedPicture]) -> None:
        import wandb

        shown = [wandb.Image(str(picture.path), caption=picture.caption) for picture in pictures]
        self._run.log({STEP: step, "pictures": shown})

    def bill(self, step: int, bill: Bill) -> None:
        import wandb

        rows = [list(row) for row in bill_rows(bill)]
        self._run.log({STEP: step, "bill": wandb.Table(columns=list(BILL_COLUMNS), data=rows)})
        self._run.summary["dollars"] = bill.dollars

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
            self._remove_links()
        self._run = None

    def _remove_links(self) -> None:
        """Links to logs of the service; a run folder with links is refused at resume."""
        for path in self._folder.rglob("*"):
            if path.is_symlink():
                path.unlink()
