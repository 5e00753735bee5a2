"""The runs of a folder: their ids in addresses, their cards in the list, and the runs that clients follow.

Invariant: an address never becomes a path; a run is found only among the folders that exist
(tests/unit/test_dashboard.py).
"""

import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import msgspec

from spotlight.control.market.prices import PriceTable
from spotlight.core.errors import SpotlightError
from spotlight.core.run_files import CONFIG
from spotlight.core.segments import list_segments
from spotlight.folder import RunFolder
from spotlight.presence import read_beat
from spotlight.surface.dashboard.followed_run import FollowedRun
from spotlight.surface.kept_view import latest
from spotlight.surface.liveness import standing_of
from spotlight.surface.metrics import measure_recent, render
from spotlight.surface.panels.summary_panel import SummaryPanel, summary_panel

PATIENCE_S = 1.0
"""Seconds that a list waits for runs that are being read."""
FOLLOWED = 8
"""Runs without a client that are kept in memory."""
PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")


class RunCard(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the list."""

    id: str
    name: str
    summary: SummaryPanel | None
    """None if the run cannot be read, or is being read."""
    curve: list[float] = []
    """Values of the headline score."""
    problem: str = ""

    @property
    def state(self) -> str:
        if self.summary is not None:
            return self.summary.state.value
        return "unreadable" if self.problem else "reading"


def run_id(path: Path) -> str:
    """Part of an address: the folder's name if it is plain, else a digest of it."""
    if PLAIN.fullmatch(path.name):
        return path.name
    return f"~{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}"


class RunIndex:
    """Runs below a folder, or one run."""

    def __init__(self, place: Path, prices: PriceTable) -> None:
        self.place = place.resolve()
        self.is_single = (self.place / CONFIG).is_file()
        self._prices = prices
        self._lock = threading.Lock()
        self._followed: OrderedDict[str, FollowedRun] = OrderedDict()
        self._cards: dict[str, tuple[object, RunCard]] = {}
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cards")
        self._reading: dict[str, Future[None]] = {}
        self.is_used: Callable[[str], bool] = lambda run: False
        """Whether a run has clients; set by the streams."""

    def paths(self) -> dict[str, Path]:
        """Folders of the runs, by id; the newest first."""
        if self.is_single:
            return {run_id(self.place): self.place}
        found = []
        for config in self.place.glob(f"*/{CONFIG}"):
            try:
                found.append((config.stat().st_mtime, config.parent))
            except OSError:
                continue
        return {run_id(path): path for _, path in sorted(found, key=lambda pair: (-pair[0], pair[1].name))}

    def metrics(self) -> str:
        """Metrics of the live and recent runs."""
        return render(measure_recent(map(RunFolder, self.paths().values()), self._prices))

    def find(self, run: str) -> FollowedRun | None:
        """The run of an id; None if there is none. Raise SpotlightError if it cannot be read."""
        with self._lock:
            known = self._followed.get(run)
            if known is not None and known.folder.config.is_file():
                self._followed.move_to_end(run)
                return known
            path = self.paths().get(run)
            if path is None:
                return None
            made = self._followed[run] = FollowedRun(RunFolder(path), self._prices, run)
            unused = [name for name in self._followed if name != run and not self.is_used(name)]
            for name in unused[: max(0, len(unused) - FOLLOWED)]:
                del self._followed[name]
            return made

    def cards(self) -> list[RunCard]:
        """All runs; those that have changed are read by one thread, and until then their last card is here."""
        with self._lock:
            paths = self.paths()
            self._cards = {run: kept for run, kept in self._cards.items() if run in paths}
            for run, path in paths.items():
                signature = _signature(path)
                is_known = run in self._cards and self._cards[run][0] == signature
                if not is_known and (run not in self._reading or self._reading[run].done()):
                    self._reading[run] = self._reader.submit(self._read_card, run, path, signature)
            reading = [future for future in self._reading.values() if not future.done()]
        wait(reading, timeout=PATIENCE_S)
        unread = {run: RunCard(id=run, name=path.name, summary=None) for run, path in paths.items()}
        return [self._cards[run][1] if run in self._cards else unread[run] for run in paths]

    def _read_card(self, run: str, path: Path, signature: object) -> None:
        self._cards[run] = (signature, self._card(run, path))

    def _card(self, run: str, path: Path) -> RunCard:
        folder = RunFolder(path)
        try:
            view = latest(folder.journal)
            of = folder.read_config()["iterations"]
            summary = summary_panel(view, self._prices, standing_of(view, path), of)
        except (SpotlightError, OSError, KeyError) as error:
            return RunCard(id=run, name=path.name, summary=None, problem=str(error))
        headline = view.headline()
        curve = [point.value for _, point in view.curve(headline)] if headline is not None else []
        return RunCard(id=run, name=path.name, summary=summary, curve=curve)


def _signature(path: Path) -> object:
    """Changes when a run's journal or its controller's file does."""
    found: list[object] = []
    segments = list_segments(path / "journal")
    for file in (*segments[-1:], path / CONFIG):
        try:
            found.append((file.name, file.stat().st_size, file.stat().st_mtime_ns))
        except OSError:
            found.append(None)
    # Its file is rewritten every second; most of that does not matter here.
    beat = read_beat(path)
    found.append(beat is not None and (beat.is_alive, beat.is_draining, beat.waiting_for))
    return tuple(found)
