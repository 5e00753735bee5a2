"""A gathered journal has the same bytes, and nothing is missing once it is synced, rotated or closed. A failure on the
way leaves a readable beginning that can be continued."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spotlight.core.events import WorkerLost
from spotlight.core.journal import Journal, JournalConfig, JournalUnwritable, Sync, read
from spotlight.core.segments import list_segments
from spotlight.core.types import WorkerId
from spotlight.sim import simulate as gathered
from spotlight.sim.simulate import BUFFER_BYTES, BufferedDisk

NEVER = JournalConfig(sync=Sync.NEVER, segment_bytes=4096)
LONG = JournalConfig(sync=Sync.NEVER)
FULL = OSError(errno.ENOSPC, "No space left on device")
Write = Callable[[int, bytes | memoryview], int]


def lost(number: int) -> WorkerLost:
    return WorkerLost(worker=WorkerId(f"spot-{number}.1/0.1"), cause="killed")


def content(folder: Path) -> list[bytes]:
    return [segment.read_bytes() for segment in list_segments(folder)]


def test_gathered_journal_closed_after_several_segments_has_the_bytes_of_a_plain_one(tmp_path: Path) -> None:
    plain = Journal.create(tmp_path / "plain", lambda: 0.0, NEVER)
    waiting = Journal.create(tmp_path / "gathered", lambda: 0.0, NEVER, BufferedDisk().disk())
    for number in range(300):
        plain.append(lost(number))
        waiting.append(lost(number))
    plain.close()
    waiting.close()
    assert len(content(tmp_path / "plain")) > 2
    assert content(tmp_path / "gathered") == content(tmp_path / "plain")


def test_gathered_journal_kept_by_a_snapshot_can_be_read_up_to_it_while_it_is_written(tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, lambda: 0.0, NEVER, BufferedDisk().disk())
    journal.append(lost(0))
    journal.append(lost(1))
    assert list(read(tmp_path)) == []
    journal.snapshot({"view": b"two"})
    assert [record.event for record in read(tmp_path)] == [lost(0), lost(1)]
    journal.close()


def failing_after(room: int, failure: BaseException) -> Write:
    """Write `room` bytes, then fail once, then write again."""
    system, left, failures = os.write, room, [failure]

    def write(handle: int, data: bytes | memoryview) -> int:
        nonlocal left
        if not failures:
            return system(handle, data)
        if not left:
            raise failures.pop()
        done = system(handle, data[:left])
        left -= done
        return done

    return write


def append_until(journal: Journal, failure: type[BaseException]) -> int:
    """Append until the failure; return the number of records taken."""

    def go_on() -> None:
        while True:
            journal.append(lost(journal.next_seq))

    with pytest.raises(failure):
        go_on()
    return journal.next_seq


def check_beginning(folder: Path) -> int:
    """Check that the journal is a beginning of what was written and can be continued; return its number of records."""
    found = [record.event for record in read(folder)]
    assert found == [lost(number) for number in range(len(found))]
    with Journal.open(folder, lambda: 0.0, LONG, BufferedDisk().disk()) as journal:
        assert journal.append(lost(len(found))).seq == len(found)
    assert [record.event for record in read(folder)] == [*found, lost(len(found))]
    return len(found)


@pytest.mark.parametrize("room", [0, 1, 5000, BUFFER_BYTES - 1, BUFFER_BYTES])
@pytest.mark.parametrize(
    ("failure", "raised"),
    [(FULL, JournalUnwritable), (KeyboardInterrupt(), KeyboardInterrupt)],
    ids=["full", "stopped"],
)
def test_gathered_journal_whose_write_fails_keeps_a_beginning_that_can_be_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, failure: BaseException, raised: type[BaseException]
) -> None:
    journal = Journal.create(tmp_path, lambda: 0.0, LONG, BufferedDisk().disk())
    monkeypatch.setattr(os, "write", failing_after(room, failure))
    taken = append_until(journal, raised)
    if room < BUFFER_BYTES - 100:
        with pytest.raises(JournalUnwritable, match="resume the run"):
            journal.append(lost(taken))
    journal.close()
    assert check_beginning(tmp_path) <= taken
    assert sum(len(segment) for segment in content(tmp_path)) <= room + 200


class Interrupting:
    """A bound whose comparison is interrupted by Ctrl-C."""

    def __lt__(self, gathered: int) -> bool:
        raise KeyboardInterrupt


def test_gathered_journal_interrupted_while_a_record_is_gathered_does_not_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.create(tmp_path, lambda: 0.0, LONG, BufferedDisk().disk())
    with monkeypatch.context() as patch:
        patch.setattr(gathered, "BUFFER_BYTES", Interrupting())
        with pytest.raises(KeyboardInterrupt):
            journal.append(lost(1))
    journal.append(lost(0))
    journal.close()
    assert check_beginning(tmp_path) == 1


def test_gathered_journal_interrupted_while_it_is_synced_takes_no_record_after_the_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.create(tmp_path, lambda: 0.0, LONG, BufferedDisk().disk())
    for number in range(20):
        journal.append(lost(number))
    monkeypatch.setattr(os, "write", failing_after(100, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        journal.sync()
    journal.append(lost(20))
    with pytest.raises(JournalUnwritable, match="an earlier write was not finished"):
        journal.close()
    assert 0 < check_beginning(tmp_path) < 20


def test_gathered_journal_that_cannot_be_flushed_when_closed_raises_and_releases_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.create(tmp_path, lambda: 0.0, LONG, BufferedDisk().disk())
    for number in range(20):
        journal.append(lost(number))
    monkeypatch.setattr(os, "write", failing_after(100, FULL))
    with pytest.raises(JournalUnwritable, match=r"No space left on device.*last record in the file"):
        journal.close()
    journal.close()
    with pytest.raises(JournalUnwritable, match="closed"):
        journal.append(lost(20))
    assert 0 < check_beginning(tmp_path) < 20
