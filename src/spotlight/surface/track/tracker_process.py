"""The process of one tracker: follows a run's journal and writes to the tracker. It is never part of the loop.

    STARTING --the package is usable--> READY --the run's folder--> OPEN --the run has ended--> CLOSED
        `---------------- a sentence ----'--------- a sentence -----+ |
                     (an error at the start)                        | `-- a write fails: PROBLEM, reported once, then
                                                                    |     tried again from the same record
                                                                    `-- OFF: it failed `ATTEMPTS` times in a row

    python -m spotlight.surface.track.tracker_process NAME

Reports are lines of JSON on standard output, the run comes on standard input, and the end of standard input means that
the controller is gone: what is in the journal is still written. All other output goes to RUN/logs/tracker-NAME.log.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from importlib import import_module
from pathlib import Path

import msgspec

from spotlight.control.market.prices import PriceTable
from spotlight.core.errors import SpotlightError
from spotlight.core.events import Record, RunResumed, RunStopped
from spotlight.core.journal_tail import JournalTail
from spotlight.core.snapshots import replace_file
from spotlight.folder import RunFolder, TrackerKind
from spotlight.surface.track.tracker import TrackedRun, Tracker
from spotlight.surface.track.tracker_feed import TrackerFeed

CLASSES: Mapping[TrackerKind, str] = {
    TrackerKind.TENSORBOARD: "spotlight.surface.track.tensorboard_tracker:TensorboardTracker",
    TrackerKind.WANDB: "spotlight.surface.track.wandb_tracker:WandbTracker",
    TrackerKind.TRACKIO: "spotlight.surface.track.trackio_tracker:TrackioTracker",
}
ATTEMPTS = 6
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 30.0
POLL_S = 0.5


class TrackerStage(StrEnum):
    READY = "ready"
    OPEN = "open"
    PROBLEM = "problem"
    OFF = "off"
    FAILED = "failed"
    """It could not start."""
    CLOSED = "closed"


class TrackerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A line from the process."""

    stage: TrackerStage
    sentence: str = ""
    exit_code: int = 0
    """Of a refusal that is a sentence for the user; 0: the text of another error."""


class Cursor(msgspec.Struct, frozen=True):
    """The last record that the tracker has; a resumed run goes on after it.

    It is noted after the record is written, so a kill in between repeats that record, and none is missed.
    """

    seq: int = -1

    @classmethod
    def read(cls, path: Path) -> "Cursor":
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError):
            return cls()

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, msgspec.json.encode(self))


class Tracking:
    """One tracker on one run."""

    def __init__(
        self,
        kind: TrackerKind,
        tracker: Tracker,
        report: Callable[[TrackerReport], None],
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._kind = kind
        self._tracker = tracker
        self._report = report
        self._wait = wait
        self._is_reported = False

    def follow(self, run: TrackedRun, has_ended: Callable[[], bool]) -> None:
        """Write every record that is not written yet, until the run's end is in the journal or `has_ended`."""
        folder = RunFolder(Path(run.folder))
        cursor_file = run.own_folder / f"{self._kind.value}.json"
        done = Cursor.read(cursor_file).seq
        feed = TrackerFeed(
            folder.path, PriceTable.load(None if run.prices is None else Path(run.prices)), _captions(folder)
        )
        tail, is_over = JournalTail(folder.journal), False
        while True:
            ended = has_ended()
            for record in tail.advance():
                is_over = isinstance(record.event, RunStopped) or (is_over and not isinstance(record.event, RunResumed))
                if feed.apply(record) and record.seq > done:
                    if not self._shown(feed, record, run):
                        return
                    Cursor(record.seq).write(cursor_file)
            if is_over or ended:
                break
            self._wait(POLL_S)
        self._tracker.close()
        self._report(TrackerReport(stage=TrackerStage.CLOSED))

    def _shown(self, feed: TrackerFeed, record: Record, run: TrackedRun) -> bool:
        """Show a record, again if that fails; False if it was given up."""
        for attempt in range(ATTEMPTS):
            try:
                feed.show(record, self._tracker)
                return True
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                self._note(problem)
                self._wait(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt))
                self._reopen(run)
        self._report(
            TrackerReport(
                stage=TrackerStage.OFF,
                sentence=f"the tracker {self._kind.value} failed {ATTEMPTS} times in a row ({problem}) and is switched "
                "off for this life of the run, which goes on without it; a resume tries it again.",
            )
        )
        return False

    def _note(self, problem: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            sentence = f"the tracker {self._kind.value} cannot be written now ({problem}); it is tried again."
            self._report(TrackerReport(stage=TrackerStage.PROBLEM, sentence=sentence))

    def _reopen(self, run: TrackedRun) -> None:
        for act in (self._tracker.close, lambda: self._tracker.open(run)):
            try:
                act()
            except Exception as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)


def tracker_of(kind: TrackerKind) -> Tracker:
    module, _, name = CLASSES[kind].partition(":")
    made: Tracker = getattr(import_module(module), name)()
    return made


def _captions(folder: RunFolder) -> dict[str, str]:
    found = folder.read_prompts() if folder.prompts.exists() else None
    return {prompt.id: prompt.text for prompt in found.held_out} if found else {}


def _failed(error: BaseException) -> TrackerReport:
    exit_code = error.exit_code if isinstance(error, SpotlightError) else 0
    sentence = str(error) if exit_code else f"{type(error).__name__}: {error}"
    return TrackerReport(stage=TrackerStage.FAILED, sentence=" ".join(sentence.split()), exit_code=exit_code)


def main(kind: TrackerKind) -> None:
    # Packages print to standard output, which is the controller's.
    channel = os.dup(1)
    os.dup2(2, 1)

    def report(line: TrackerReport) -> None:
        # The controller may be gone.
        with suppress(BrokenPipeError):
            os.write(channel, msgspec.json.encode(line) + b"\n")

    try:
        tracker = tracker_of(kind)
        tracker.prepare()
        report(TrackerReport(stage=TrackerStage.READY))
        line = sys.stdin.readline()
        if not line:
            return
        run = msgspec.json.decode(line.encode(), type=TrackedRun)
        _log_to(Path(run.folder) / "logs" / f"tracker-{kind.value}.log")
        tracker.open(run)
    except BaseException as error:
        report(_failed(error))
        sys.exit(1)
    report(TrackerReport(stage=TrackerStage.OPEN))
    gone = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        gone.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    Tracking(kind, tracker, report).follow(run, gone.is_set)


def _log_to(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(handle, stream)
    os.close(handle)


if __name__ == "__main__":
    main(TrackerKind(sys.argv[1]))
