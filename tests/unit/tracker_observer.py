"""The files that the trackers of a run leave, for tests/unit/test_settings_matter.py."""

import os
from pathlib import Path
from unittest.mock import patch

from journal_stories import CALM, HandClock
from story_journal import story

from spotlight.config import RunConfig
from spotlight.core.journal import Journal
from spotlight.folder import RunFolder
from spotlight.surface.track.tracker_processes import TrackerProcesses


def tracked(config: RunConfig, folder: Path) -> object:
    """Folders and stores that the trackers write for a run of one iteration."""
    run = RunFolder(folder)
    run.write_config(config.model_dump(mode="json"))
    with Journal.create(run.journal, HandClock(0.0).now, CALM) as journal:
        for record in story(1):
            journal.append(record.event)
    place = patch.dict(os.environ, {"TRACKIO_DIR": str(folder / "store")})
    with place, TrackerProcesses(config.output.trackers) as trackers:
        trackers.open(run, config.output, None)
    return sorted(path.name for part in ("trackers", "store") for path in (folder / part).glob("*"))
