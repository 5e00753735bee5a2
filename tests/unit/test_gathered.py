"""A gathered journal is the same bytes, and nothing is missing once it is synced, rotated or closed."""

from pathlib import Path

from spotlight.core.events import WorkerLost
from spotlight.core.journal import Journal, JournalConfig, Sync, read
from spotlight.core.segments import list_segments
from spotlight.core.types import WorkerId
from spotlight.runtime.sim.gathered import Gathering

NEVER = JournalConfig(sync=Sync.NEVER, segment_bytes=4096)


def lost(number: int) -> WorkerLost:
    return WorkerLost(worker=WorkerId(f"spot-{number}.1/0.1"), cause="killed")


def content(folder: Path) -> list[bytes]:
    return [segment.read_bytes() for segment in list_segments(folder)]


def test_gathered_journal_closed_after_several_segments_has_the_bytes_of_a_plain_one(tmp_path: Path) -> None:
    plain = Journal.create(tmp_path / "plain", lambda: 0.0, NEVER)
    gathered = Journal.create(tmp_path / "gathered", lambda: 0.0, NEVER, Gathering().disk())
    for number in range(300):
        plain.append(lost(number))
        gathered.append(lost(number))
    plain.close()
    gathered.close()
    assert len(content(tmp_path / "plain")) > 2
    assert content(tmp_path / "gathered") == content(tmp_path / "plain")


def test_gathered_journal_kept_by_a_snapshot_can_be_read_up_to_it_while_it_is_written(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, lambda: 0.0, NEVER, Gathering().disk())
    journal.append(lost(0))
    journal.append(lost(1))
    assert list(read(tmp_path)) == []
    journal.snapshot({"view": b"two"})
    assert [record.event for record in read(tmp_path)] == [lost(0), lost(1)]
    journal.close()
