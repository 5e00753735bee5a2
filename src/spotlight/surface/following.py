"""Follows the run of another process: its new records, and whether it has ended.

A run has ended when its end is in the journal and its controller is gone, or when the controller has been gone for
`DEATH_S` without a record: between two lives of a run there is a moment without either.
"""

import subprocess
import time
from collections.abc import Callable, Iterator

from spotlight.core.events import Record, RunResumed, RunStopped
from spotlight.core.journal_tail import JournalTail
from spotlight.folder import RunFolder
from spotlight.presence import read_beat
from spotlight.surface.kept_view import latest
from spotlight.surface.projections import RunView

POLL_S = 0.25
DEATH_S = 3.0


def view_to_follow(folder: RunFolder) -> RunView:
    """The view so far; an empty one of a run that is still starting, so that the stages of its start are shown."""
    view = latest(folder.journal)
    return RunView() if view.facts.attempts == 1 and not view.facts.is_issued else view


class RunFollower:
    """Records after those of `view`; `process` is the controller if this process has started it."""

    def __init__(self, folder: RunFolder, view: RunView, process: "subprocess.Popen[str] | None" = None) -> None:
        self._folder = folder
        self._tail = JournalTail(folder.journal, after=view.seq)
        self._process = process
        self._is_stopped = view.facts.stopped is not None
        self._absent_since: float | None = None

    def new(self) -> Iterator[Record]:
        """Records that were written since the last call."""
        for record in self._tail.advance():
            if isinstance(record.event, RunStopped | RunResumed):
                self._is_stopped = isinstance(record.event, RunStopped)
            yield record

    def has_ended(self) -> bool:
        """Whether no process works on the run any more."""
        if self._process is not None:
            return self._process.poll() is not None
        beat = read_beat(self._folder.path)
        if beat is not None and beat.is_alive:
            self._absent_since = None
            return False
        now = time.monotonic()
        self._absent_since = now if self._absent_since is None else self._absent_since
        return self._is_stopped or now - self._absent_since > DEATH_S

    def follow(self, observe: Callable[[Record], None], timeout_s: float | None = None) -> bool:
        """Call `observe` with every new record until the run has ended; False if the time was up before."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            # The order matters: records that were written before the end are read after it was seen.
            ended = self.has_ended()
            for record in self.new():
                observe(record)
            if ended:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
