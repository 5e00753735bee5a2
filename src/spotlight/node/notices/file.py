"""A file that appears, for schedulers of other kinds; its removal withdraws the notice."""

import math
import os
import stat
from pathlib import Path

from spotlight.core.clock import Clock
from spotlight.core.work import NoticeKind
from spotlight.node.notices.notice import Notice, WatchedSource

GRACE_S = 30.0
CONTENT_MOST = 64


class NoticeFile(WatchedSource):
    """The file holds the seconds left, counted from the poll that reads them, or nothing for `grace_s`.

    Content that is not a number counts as nothing: the file exists, so the node will be lost. New content gives a new
    deadline, so a scheduler should write the file elsewhere and rename it.
    """

    def __init__(self, path: Path, clock: Clock, pause_s: float, grace_s: float = GRACE_S) -> None:
        self.name = f"file:{path}"
        self.pause_s = pause_s
        self._path = path
        self._clock = clock
        self._grace_s = grace_s
        self._seconds = math.nan
        self._notice: Notice | None = None

    async def poll(self) -> Notice | None:
        seconds = self._read()
        if seconds is None:
            self._notice = None
        elif self._notice is None or seconds != self._seconds:
            deadline = self._clock.now() + seconds
            self._notice = Notice(kind=NoticeKind.IMMINENT, source=self.name, deadline=deadline)
            self._seconds = seconds
        return self._notice

    def _read(self) -> float | None:
        """Seconds in the file; None without a file."""
        try:
            is_plain = stat.S_ISREG(os.stat(self._path).st_mode)
            # A pipe would block the event loop.
            content = _start(self._path) if is_plain else b""
        except FileNotFoundError:
            return None
        try:
            seconds = float(content)
        except ValueError:
            return self._grace_s
        return seconds if math.isfinite(seconds) and seconds >= 0 else self._grace_s


def _start(path: Path) -> bytes:
    """First bytes of a file; none if it may not be read."""
    try:
        with path.open("rb") as file:
            return file.read(CONTENT_MOST)
    except PermissionError:
        return b""
