"""The run log's meter is the same whichever reader requests it, and whenever."""

from pathlib import Path

import pytest
from story_journal import story

from spotlight.config import load_config
from spotlight.control.market.cost import CostMeter
from spotlight.core.clock import RealClock
from spotlight.core.events import AnyEvent, Issued, IterationDone, NodeJoined, NodeLost, Record
from spotlight.core.journal import read
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
