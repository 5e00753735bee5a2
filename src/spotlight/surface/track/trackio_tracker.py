"""Trackio: a local store in TRACKIO_DIR (default the Hugging Face cache), shown by `trackio show`."""

from collections.abc import Mapping, Sequence
from typing import Any

from spotlight.control.market.bill import Bill
from spotlight.surface.track.tracker import BILL_COLUMNS, TrackedPicture, TrackedRun, bill_rows


class TrackioTracker:
    def __init__(self) -> None:
        self._run: Any = None

    def prepare(self) -> None:
        import trackio  # noqa: F401

    def open(self, run: TrackedRun) -> None:
        import trackio

        self._run = trackio.init(
            project=run.project,
            name=f"{run.name}-{run.id}",
            config=run.settings,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def pictures(self, step: int, pictures: Sequence[TrackedPicture]) -> None:
        import trackio

        shown = {
            f"pictures/{picture.key}": trackio.Image(picture.path, caption=picture.caption) for picture in pictures
        }
        self._run.log(shown, step=step)

    def bill(self, step: int, bill: Bill) -> None:
        import trackio

        rows = [list(row) for row in bill_rows(bill)]
        self._run.log({"bill": trackio.Table(columns=list(BILL_COLUMNS), data=rows)}, step=step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
        self._run = None
