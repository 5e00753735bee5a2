"""A long run's view: kept after every iteration, and read from there on."""

from pathlib import Path

from story_journal import story

from spotlight.config import load_config
from spotlight.core.clock import RealClock
from spotlight.core.events import IterationDone
from spotlight.core.journal import newest_snapshot
from spotlight.folder import RunFolder
from spotlight.run_log import RunLog
from spotlight.surface.kept_view import latest, part_name
from spotlight.surface.projections import RunView

EVENTS = [record.event for record in story()][1:]


def watched(folder: Path) -> tuple[RunLog, RunView]:
    """A run as `spotlight train` watches it, in small segments."""
    overrides = ["output.journal.sync=never", "output.journal.segment_bytes=4096"]
    run_log = RunLog.begin(load_config("words-nft", overrides), "words-nft", RunFolder(folder), RealClock())
    view = latest(run_log.folder.journal)
    run_log.observers.append(view.apply)
    run_log.projections[part_name()] = view.to_bytes
    return run_log, view


def test_view_is_kept_at_the_end_of_every_iteration(tmp_path: Path) -> None:
    run_log, _ = watched(tmp_path)
    for event in EVENTS:
        run_log.emit(event)
        kept = newest_snapshot(run_log.folder.journal)
        if isinstance(event, IterationDone):
            assert kept is not None
            assert kept.seq == run_log.next_seq - 1
    run_log.close()
    assert latest(run_log.folder.journal).iterations


def test_view_of_a_long_run_reads_only_what_follows_the_newest_snapshot(tmp_path: Path) -> None:
    """All earlier segments are overwritten, which the view does not notice."""
    run_log, view = watched(tmp_path)
    last = max(index for index, event in enumerate(EVENTS) if isinstance(event, IterationDone))
    for event in EVENTS[: last + 1]:
        run_log.emit(event)
    segments = sorted(run_log.folder.journal.glob("segment-*.log"))
    for event in EVENTS[last + 1 :]:
        run_log.emit(event)
    run_log.close()
    assert len(segments) > 3
    for old in segments[:-1]:
        old.write_bytes(b"ruined")
    assert latest(run_log.folder.journal) == view
