"""A run folder that a test writes while a browser looks at it, and waits for what the page shows."""

from collections.abc import Sequence
from pathlib import Path

from journal_stories import HandClock
from recorded_folder import append, recorded_folder

from spotlight.core.events import Record
from spotlight.core.journal import Journal
from spotlight.surface.feed_lines import feed_line

TIMEOUT_MS, POLL_MS = 60_000, 40


class GrowingRun:
    """The first records of a recorded run; `grow` appends the next ones."""

    def __init__(self, path: Path, records: Sequence[Record], begun: int) -> None:
        self.records, self.written = records, begun
        self.folder = recorded_folder(path, records[:begun])
        self._clock = HandClock(records[begun - 1].at)

    def grow(self, records: int) -> None:
        with Journal.open(self.folder.journal, self._clock.now) as journal:
            append(journal, self._clock, self.records[self.written : self.written + records])
        self.written = min(len(self.records), self.written + records)

    def lines(self) -> list[int]:
        """Records that have a line in the list of what happened."""
        return [record.seq for record in self.records[: self.written] if feed_line(record)]


def wait(page, condition: str, argument=None) -> None:
    """Poll from outside: the page's policy forbids the evaluation of strings inside it."""
    for _ in range(TIMEOUT_MS // POLL_MS):
        if page.evaluate(condition, argument):
            return
        page.wait_for_timeout(POLL_MS)
    raise TimeoutError(f"this never came true: {condition} ({argument})")


def wait_for_drawing(page) -> None:
    wait(page, "document.querySelector('[data-timeline]')?.dataset.ownSeq !== undefined")
    wait(page, "document.querySelector('[data-link]').dataset.state === 'live'")


def wait_for_position(page, seq: int) -> None:
    wait(page, "seq => Number(document.querySelector('[data-run]').dataset.seq) === seq", seq)
