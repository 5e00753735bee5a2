"""A journal read while it is written: every record once, whatever was on disk at each call."""

import os
from pathlib import Path

import pytest
from journal_stories import HandClock

from spotlight.core.events import ProblemNoted
from spotlight.core.journal import Journal, JournalConfig, Sync, read
from spotlight.core.journal_tail import JournalTail
from spotlight.core.segments import JournalCorrupt, list_segments

SMALL = JournalConfig(sync=Sync.NEVER, segment_bytes=1024)


def noted(number: int) -> ProblemNoted:
    return ProblemNoted(source="test", problem=f"problem {number} " + "x" * 100)


def test_a_tail_returns_every_record_once_over_many_segments_and_from_any_position(tmp_path: Path) -> None:
    tails: dict[int, JournalTail] = {}
    found: dict[int, list[int]] = {}
    with Journal.create(tmp_path / "journal", HandClock(0.0).now, SMALL) as journal:
        for number in range(40):
            journal.append(noted(number))
            if number % 7 == 0:
                tails[number - 1], found[number - 1] = JournalTail(tmp_path / "journal", after=number - 1), []
            if number % 3 == 0:
                for after, tail in tails.items():
                    found[after] += [record.seq for record in tail.advance()]
    assert len(list_segments(tmp_path / "journal")) > 3
    for after, tail in tails.items():
        found[after] += [record.seq for record in tail.advance()]
        assert found[after] == list(range(after + 1, 40))
        assert tail.advance() == []


def test_a_half_written_record_is_returned_once_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    with Journal.create(folder, HandClock(0.0).now) as journal:
        journal.append(noted(0))
        (segment,) = list_segments(folder)
        before = segment.stat().st_size
        journal.append(noted(1))
    whole = segment.read_bytes()
    os.truncate(segment, before + 20)
    tail = JournalTail(folder)
    assert [record.seq for record in tail.advance()] == [0]
    assert tail.advance() == []
    segment.write_bytes(whole)
    assert [record.event for record in tail.advance()] == [noted(1)]


def test_a_tail_goes_on_after_a_resume_has_cut_a_torn_record(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    with Journal.create(folder, HandClock(0.0).now) as journal:
        journal.append(noted(0))
    (segment,) = list_segments(folder)
    with segment.open("ab") as file:
        file.write(b"\xc1\xc1torn")
    tail = JournalTail(folder)
    assert [record.seq for record in tail.advance()] == [0]
    with Journal.open(folder, HandClock(0.0).now) as journal:
        journal.append(noted(7))
    assert [record.event for record in tail.advance()] == [noted(7)]
    assert [record.seq for record in read(folder)] == [0, 1]


def test_a_missing_record_is_reported_and_not_skipped(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    with Journal.create(folder, HandClock(0.0).now, SMALL) as journal:
        tail = JournalTail(folder)
        for number in range(20):
            journal.append(noted(number))
    first, *_ = list_segments(folder)
    content = first.read_bytes()
    first.write_bytes(content[: len(content) - 150])
    assert [record.seq for record in tail.advance()] == list(range(4))
    with pytest.raises(JournalCorrupt, match="is damaged"):
        tail.advance()
