"""The run log: one meter for all readers, and no event after one that could not be written."""

import errno
import os
from pathlib import Path

import pytest
from story_journal import story

from spotlight.config import load_config
from spotlight.control.market.cost import CostMeter
from spotlight.core.clock import RealClock
from spotlight.core.events import AnyEvent, Issued, IterationDone, NodeJoined, NodeLost, Record, RunStopped
from spotlight.core.journal import Disk, JournalUnwritable, read
from spotlight.folder import RunFolder
from spotlight.run_log import RunLog

EVENTS = [record.event for record in story()][1:]


@pytest.mark.parametrize("kind", [IterationDone, NodeJoined, NodeLost, Issued])
@pytest.mark.parametrize("reader", ["watchers", "observers"])
def test_meter_first_read_while_a_record_is_observed_counts_every_record_once(
    tmp_path: Path, reader: str, kind: type[AnyEvent]
) -> None:
    config = load_config("words-nft", ["output.journal.sync=never"])
    run_log = RunLog.begin(config, "words-nft", RunFolder(tmp_path), RealClock())
    seen: list[CostMeter] = []

    def read_meter(record: Record) -> None:
        if isinstance(record.event, kind):
            seen.append(run_log.meter)

    {"watchers": run_log.watchers, "observers": run_log.observers}[reader].append(read_meter)
    for event in EVENTS:
        run_log.emit(event)
    run_log.close()
    assert seen
    assert run_log.meter == CostMeter.replay(read(run_log.folder.journal))


def test_events_after_one_that_could_not_be_written_are_refused_except_the_end_of_the_run(tmp_path: Path) -> None:
    is_full = False

    def write(handle: int, data: bytes | memoryview) -> int:
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(handle, data)

    config = load_config("words-nft", ["output.journal.sync=never"])
    run_log = RunLog.begin(config, "words-nft", RunFolder(tmp_path), RealClock(), disk=Disk(write=write))
    is_full = True
    with pytest.raises(JournalUnwritable):
        run_log.emit(EVENTS[0])
    is_full = False
    with pytest.raises(JournalUnwritable):
        run_log.emit(EVENTS[1])
    run_log.emit(RunStopped(reason="the disk was full", finished=False))
    run_log.close()
    assert [type(record.event).__name__ for record in read(run_log.folder.journal)] == ["RunStarted", "RunStopped"]
