"""The journal of a small realistic run, in the folder of a run that has weights only."""

import shutil
from pathlib import Path

from journal_stories import CALM, HandClock
from story_journal import story

from spotlight.core.journal import Journal


def record(run: Path, iterations: int = 3) -> None:
    """Write the journal of `story_journal.py` into the run's folder."""
    shutil.rmtree(run / "journal", ignore_errors=True)
    clock = HandClock(0.0)
    with Journal.create(run / "journal", clock.now, CALM) as journal:
        for past in story(iterations):
            clock.seconds = past.at
            journal.append(past.event)
