"""The protocol of a tracker, and the run that it receives."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from spotlight.control.market.bill import Bill

NAME_LENGTH = 120
NOT_SAFE = re.compile(r"[^A-Za-z0-9_.=-]+")


class TrackedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as trackers know it; crosses a pipe as JSON."""

    folder: str
    id: str
    """The same at every resume."""
    name: str
    """Safe as a file name: some trackers make folders of it."""
    project: str
    settings: dict[str, Any]
    prices: str | None = None
    """Price table of the run; None: the shipped one."""

    @property
    def own_folder(self) -> Path:
        """Where trackers that write files put them."""
        return Path(self.folder) / "trackers"


class TrackedPicture(msgspec.Struct, frozen=True, kw_only=True):
    """A held-out picture, with its prompt as text for people."""

    key: str
    """The same for one prompt and seed over all iterations."""
    path: Path
    caption: str


class Tracker(Protocol):
    """Writes to one tracker; steps are numbers of finished iterations. Any method may raise."""

    def prepare(self) -> None:
        """Before the run begins: raise EnvironmentProblem if the tracker cannot be used, as without an account."""

    def open(self, run: TrackedRun) -> None:
        """Begin the run or go on with it."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None: ...

    def pictures(self, step: int, pictures: Sequence[TrackedPicture]) -> None: ...

    def bill(self, step: int, bill: Bill) -> None:
        """The cost by slots, at the end of a life of the run."""

    def close(self) -> None:
        """Write everything out; closing twice has no effect."""


def safe_name(text: str) -> str:
    """A part of a file name that any tracker takes: no path, no control character, not empty."""
    return NOT_SAFE.sub("_", text).strip(".-")[:NAME_LENGTH] or "run"


BILL_COLUMNS = ("slots", "price", "hours", "dollars")


def bill_rows(bill: Bill) -> list[tuple[str, str, float, float]]:
    """Lines of the bill: class of slots, row of the price table, slot hours, dollars."""
    return [
        (
            f"{line.slot_class.value}{', in place of spot' if line.stands_in else ''}",
            safe_name(line.price),
            round(line.total_seconds / 3600, 4),
            round(line.dollars, 4),
        )
        for line in bill.lines
    ]
