"""Windows of recorded markets: a trace file and the hour at which its replay begins.

Windows are given in a list (`listed`), as every file at the same hours (`at_hours`), or drawn (`drawn`): for each class
of capacity the same number, uniformly among all whole hours of all files. A window is of a class before any race if the
mean number of nodes that a run would hold is, both in its first half hour and in its first two hours: races last from
minutes to hours. The class of a race is that of the slots that it held. Hours near those that settings were chosen
with, and the last hours of a recording, are never drawn.
"""

import csv
import random
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple

from spotlight.control.market.traces import Trace
from spotlight.core.errors import InputError

SPOT = 8
"""Spot slots of the setups."""
HOUR_S = 3600.0
LOOKS_H = (0.5, 2.0)
"""Hours whose means decide the class of a drawn window."""
LAST_H = 12.0
"""A drawn window has this number of recorded hours: the longest races last as long."""
APART_H = 12.0
"""Least distance of a drawn window from one that settings were chosen with, and between two drawn ones of a file."""


class MarketClass(StrEnum):
    """Capacity of a market, by the mean number of spot slots held."""

    NONE = "none"
    SCARCE = "scarce"
    PARTIAL = "partial"
    FULL = "full"

    @classmethod
    def of(cls, slots: float) -> "MarketClass":
        for kind, below in ((cls.NONE, 0.1), (cls.SCARCE, 1.0), (cls.PARTIAL, 6.0)):
            if slots < below:
                return kind
        return cls.FULL


class MarketWindow(NamedTuple):
    file: str
    """Name in the folder; several joined with `+` are zones of one market."""
    start_h: float

    def trace(self, folder: Path) -> str:
        """The trace as a flag of the benchmark, `PATH@HOUR`."""
        paths = [folder / name for name in self.file.split("+")]
        for path in paths:
            if not path.is_file():
                raise InputError(f"the folder {folder} has no trace {path.name}; check the list of windows.")
        return f"{'+'.join(map(str, paths))}@{self.start_h:g}"


CHOSEN_WITH = (
    MarketWindow("gcp_h100x1_16n_europe-west1-c_w1.csv", 0.0),
    MarketWindow("gcp_h100x1_16n_us-central1-a_w1.csv", 1.0),
)
"""Recorded windows of docs/results/headline.json. Settings were chosen with the generated trace `calm` alone, but these
were looked at."""


def listed(path: Path) -> list[MarketWindow]:
    """Windows of a CSV file with the columns `file` and `start_h`, or `start_s`."""
    with path.open(newline="") as table:
        rows = list(csv.DictReader(table))
    try:
        found = [
            MarketWindow(row["file"], float(row["start_h"]) if "start_h" in row else float(row["start_s"]) / HOUR_S)
            for row in rows
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is no list of windows ({error!r}); use the columns file,start_h.") from error
    if not found:
        raise InputError(f"{path} lists no windows; add lines such as TRACE.csv,20.5.")
    return found


def at_hours(folder: Path, pattern: str, hours: list[float]) -> list[MarketWindow]:
    return [MarketWindow(path.name, hour) for path in files(folder, pattern) for hour in hours]


def files(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    if not found:
        raise InputError(f"no file in {folder} matches '{pattern}'; check the folder, or pass --files.")
    return found


def drawn(folder: Path, pattern: str, per_class: int, seed: int) -> list[MarketWindow]:
    """`per_class` windows of every class, in the order of their draws; a class with fewer windows is an error."""
    windows = list(_hours(files(folder, pattern)))
    random.Random(seed).shuffle(windows)
    found: dict[MarketClass, list[MarketWindow]] = {kind: [] for kind in MarketClass}
    for window in windows:
        kinds = {MarketClass.of(held_slots(str(folder / window.file), window.start_h, hours)) for hours in LOOKS_H}
        kind = kinds.pop()
        if not kinds and len(found[kind]) < per_class and not any(_is_near(window, other) for other in found[kind]):
            found[kind].append(window)
    for kind, members in found.items():
        if len(members) < per_class:
            raise InputError(
                f"the traces have only {len(members)} separate windows of class {kind.value}, but {per_class} are to "
                "be drawn; draw fewer, or add traces."
            )
    return [window for members in found.values() for window in members]


def _hours(paths: list[Path]) -> Iterator[MarketWindow]:
    for path in paths:
        for hour in range(int(_trace(str(path)).seconds / HOUR_S - LAST_H) + 1):
            window = MarketWindow(path.name, float(hour))
            if not any(_is_near(window, used) for used in CHOSEN_WITH):
                yield window


def _is_near(one: MarketWindow, other: MarketWindow) -> bool:
    return one.file == other.file and abs(one.start_h - other.start_h) < APART_H


@cache
def _trace(path: str) -> Trace:
    return Trace.load(path, SPOT)


def held_slots(path: str, start_h: float, hours: float) -> float:
    """Mean number of nodes held from an hour on, without boots."""
    begin, end = start_h * HOUR_S, (start_h + hours) * HOUR_S
    stays = _trace(path).stays()
    seconds = (min(end, end if stay.lost_s is None else stay.lost_s) - max(begin, stay.start_s) for stay in stays)
    return sum(max(0.0, each) for each in seconds) / (end - begin)
