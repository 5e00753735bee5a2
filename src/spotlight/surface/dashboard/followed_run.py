"""One run as the live page shows it: its view, the panels' HTML, and what changed since any position of the journal.

One object per run serves all its clients. `refresh` reads the new records and renders; it blocks, so that the server
calls it in a thread. Invariant: a client that applies the update since its position has what a new client has
(tests/unit/test_dashboard_stream.py).
"""

import threading
import time
from collections import deque
from functools import lru_cache
from urllib.parse import quote

import msgspec

from spotlight.control.market.prices import PriceTable
from spotlight.core.errors import InputError
from spotlight.core.journal_tail import JournalTail
from spotlight.folder import RunFolder
from spotlight.surface.auditing import AuditFollower, bounds_of
from spotlight.surface.dashboard.lease_lookup import LeaseLookup, SlotMoment
from spotlight.surface.dashboard.timeline_window import TimelineIndex, TimelineWindow
from spotlight.surface.feed_lines import FeedLine
from spotlight.surface.html.fragments import page_fragments
from spotlight.surface.html.templating import rendered
from spotlight.surface.kept_view import kept
from spotlight.surface.liveness import RunStanding, standing_of
from spotlight.surface.media import PictureFolder
from spotlight.surface.panels.run_panels import Panels, RunSetting, panels_of, setting_of
from spotlight.surface.projections import FEED_KEPT
from spotlight.surface.report.report_page import render_report

UPDATES_KEPT = 32
"""Updates that a slow client may be behind before it gets everything anew."""
VERDICT_EVERY_S = 5.0
"""Least seconds between two verdicts on a live run."""
WINDOWS_KEPT = 32


class Update(msgspec.Struct, frozen=True, kw_only=True, rename={"since": "from"}):
    """What changed between two positions of the journal."""

    since: int
    seq: int
    at: float
    state: str
    panels: dict[str, str]
    """HTML of the changed panels."""
    lines: list[str]
    """HTML of what happened, in the order of the journal."""
    is_whole: bool = False
    """Whether all panels are here."""


class EncodedUpdate(msgspec.Struct, frozen=True):
    """An update as a server-sent event."""

    revision: int
    """Number of the newest update that it includes."""
    seq: int
    body: bytes


class FollowedRun:
    """The shared state of one run; every method takes the lock."""

    def __init__(self, folder: RunFolder, prices: PriceTable, name: str) -> None:
        """`name` is the run's part of addresses."""
        self.folder = folder
        self.name = name
        self._prices = prices
        self._lock = threading.Lock()
        self.view = kept(folder.journal)
        self._tail = JournalTail(folder.journal, after=self.view.seq)
        self._setting: RunSetting = setting_of(folder)
        self._pictures = PictureFolder(folder.path)
        self._shown: set[str] = set()
        self._leases = LeaseLookup(folder.journal, since=self.view.at)
        self._timeline = TimelineIndex(self.view)
        self._audit = AuditFollower(folder.journal, bounds_of(folder.read_config()))
        self._verdict_at = 0.0
        self._windows = lru_cache(maxsize=WINDOWS_KEPT)(self._window)
        self._damage = ""
        self.panels: Panels | None = None
        self._fragments: dict[str, str] = {}
        self._updates: deque[EncodedUpdate] = deque(maxlen=UPDATES_KEPT)
        self._revision = 0
        self.refresh()

    def refresh(self) -> bool:
        """Read new records and render what they change; True if anything changed."""
        with self._lock:
            before = self.view.seq
            try:
                for record in self._tail.advance():
                    self.view.apply(record)
                    self._leases.apply(record)
            except (InputError, OSError) as error:
                self._damage = str(error)
            standing = standing_of(self.view, self.folder.path)
            self._check(standing.pid_alive)
            lines = [line for line in self.view.feed if line.seq > before]
            fragments = self._rendered(standing)
            changed = {name: html for name, html in fragments.items() if html != self._fragments.get(name)}
            self._fragments = fragments
            if not changed and self.view.seq == before:
                return False
            self._revision += 1
            self._updates.append(self._encoded(self._update(before, changed, lines)))
            return True

    def since(self, seq: int) -> EncodedUpdate:
        """Everything that a client at this position lacks."""
        with self._lock:
            lines = [line for line in self.view.feed if line.seq > seq]
            return self._encoded(self._update(seq, self._fragments, lines, is_whole=True))

    def newer(self, revision: int) -> list[EncodedUpdate] | None:
        """Updates after this one; None if some of them are no longer kept. Never waits for a refresh."""
        kept = list(self._updates)
        if not kept or kept[-1].revision <= revision:
            return []
        found = [update for update in kept if update.revision > revision]
        return found if found[0].revision == revision + 1 else None

    def window(self, start: float, end: float, bins: int) -> bytes:
        """A part of the timeline as JSON; clients that follow the run share it."""
        with self._lock:
            return self._windows(self.view.seq, start, end, bins)

    def moment(self, row: str, at: float) -> SlotMoment:
        with self._lock:
            return self._leases.at(row, at)

    def page(self) -> tuple[int, float, dict[str, str]]:
        """Position, run time and HTML of all panels."""
        with self._lock:
            return self.view.seq, self.view.at, dict(self._fragments)

    def report(self) -> str:
        """The whole run as one file, as `spotlight report` writes it."""
        with self._lock:
            return render_report(self.view, self.folder.path, self._prices, self._setting, self._audit.report)

    def picture(self, name: str) -> str | None:
        """Path of a picture that the journal names; None for any other file."""
        with self._lock:
            if not any(picture.path == name for picture in self.view.gallery):
                return None
            path = self._pictures.find(name)
            return None if path is None else str(path)

    def _window(self, seq: int, start: float, end: float, bins: int) -> bytes:
        found: TimelineWindow = self._timeline.window(start, end, bins)
        return msgspec.json.encode(found)

    def _check(self, is_live: bool) -> None:
        """Continue the audit, and renew its verdict; of a live run only after some time."""
        if self._damage:
            return
        try:
            if self._audit.advance():
                return
        except (InputError, OSError) as error:
            self._damage = str(error)
            return
        if not is_live or time.monotonic() - self._verdict_at > VERDICT_EVERY_S:
            self._audit.settle()
            self._verdict_at = time.monotonic()

    def _rendered(self, standing: RunStanding) -> dict[str, str]:
        self.panels = panels_of(
            self.view, self._prices, self._setting, standing, self._audit.report, is_there=self._is_there
        )
        fragments = page_fragments(self.panels, self.view, media=lambda path: f"/runs/{self.name}/media/{quote(path)}")
        damage = rendered("damage.html", damage=self._damage)
        return {name: str(html) for name, html in {"damage": damage, **fragments}.items()}

    def _is_there(self, name: str) -> bool:
        """Whether a picture can be shown; one that was found once stays."""
        if name not in self._shown and self._pictures.find(name) is not None:
            self._shown.add(name)
        return name in self._shown

    def _update(self, since: int, panels: dict[str, str], lines: list[FeedLine], is_whole: bool = False) -> Update:
        assert self.panels is not None
        return Update(
            since=since,
            seq=self.view.seq,
            at=self.view.at,
            state=self.panels.summary.state.value,
            panels=panels,
            lines=[str(rendered("feed_line.html", one=line)) for line in lines[-FEED_KEPT:]],
            is_whole=is_whole,
        )

    def _encoded(self, update: Update) -> EncodedUpdate:
        """The event's id is the position in the journal."""
        body = b"id: %d\nevent: update\ndata: %s\n\n" % (update.seq, msgspec.json.encode(update))
        return EncodedUpdate(self._revision, update.seq, body)
