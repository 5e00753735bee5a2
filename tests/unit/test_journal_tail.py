"""A follower of a journal returns what the reader returns, each record once, wherever the writer stops."""

from pathlib import Path

import msgspec
import pytest
from journal_stories import CALM, HandClock
from story_journal import story

from spotlight.core.journal import Journal, JournalConfig, JournalCorrupt, Sync, read
from spotlight.core.journal_tail import JournalTail
from spotlight.core.run_version import OtherVersion
from spotlight.core.segments import FRAME, HEADER, list_segments, pack_frame

SMALL = JournalConfig(sync=Sync.NEVER, segment_bytes=2048)


def written(folder: Path, config: JournalConfig = CALM, iterations: int = 1) -> Path:
    clock = HandClock(0.0)
    with Journal.create(folder, clock.now, config) as journal:
        for record in story(iterations):
            clock.seconds = record.at
            journal.append(record.event)
    return folder


def test_follower_returns_each_record_once_while_segments_are_written(tmp_path):
    clock, got = HandClock(0.0), []
    tail = JournalTail(tmp_path / "journal")
    assert tail.advance() == [], "the run is being created"
    with Journal.create(tmp_path / "journal", clock.now, SMALL) as journal:
        for number, record in enumerate(story(2)):
            clock.seconds = record.at
            journal.append(record.event)
            if number % 5 == 0:
                got += tail.advance()
    got += tail.advance()
    assert len(list_segments(tmp_path / "journal")) > 3
    assert got == list(read(tmp_path / "journal"))
    assert tail.advance() == []


@pytest.mark.parametrize("after", [-1, 0, 41, 88])
def test_follower_starts_after_any_record_and_returns_a_few_at_a_time(tmp_path, after):
    folder = written(tmp_path / "journal", SMALL)
    tail, got = JournalTail(folder, after), []
    while new := tail.advance(most=7):
        assert len(new) <= 7
        got += new
    assert got == list(read(folder, after=after))
    assert tail.seq == got[-1].seq


def test_record_that_is_half_written_is_returned_once_it_is_whole(tmp_path):
    folder = written(tmp_path / "journal")
    (segment,) = list_segments(folder)
    whole, records = segment.read_bytes(), list(read(folder))
    for cut in range(len(whole) - 60, len(whole)):
        segment.write_bytes(whole[:cut])
        tail = JournalTail(folder)
        got = tail.advance()
        segment.write_bytes(whole)
        assert got + tail.advance() == records


def test_record_longer_than_a_chunk_is_returned(tmp_path, monkeypatch):
    monkeypatch.setattr("spotlight.core.journal_tail.CHUNK", 200)
    folder = written(tmp_path / "journal")
    assert JournalTail(folder).advance() == list(read(folder))


def test_damage_is_reported_as_by_the_reader_and_earlier_records_are_returned(tmp_path):
    folder = written(tmp_path / "journal", SMALL)
    records, segments = list(read(folder)), list_segments(folder)
    content = bytearray(segments[1].read_bytes())
    content[len(content) // 2] ^= 0xFF
    segments[1].write_bytes(content)
    tail = JournalTail(folder)
    got = tail.advance()
    with pytest.raises(JournalCorrupt, match="is damaged") as caught:
        tail.advance()
    assert got == records[: caught.value.seq]
    assert 0 < len(got) < len(records)


def test_record_that_cannot_be_decoded_is_damage(tmp_path):
    folder = written(tmp_path / "journal")
    with list_segments(folder)[0].open("ab") as file:
        file.write(pack_frame(b"no record"))
    tail = JournalTail(folder)
    assert len(tail.advance()) == len(story(1))
    with pytest.raises(JournalCorrupt, match="cannot be read"):
        tail.advance()


def test_record_of_another_version_in_an_earlier_segment_is_reported(tmp_path):
    folder = written(tmp_path / "run" / "journal", SMALL)
    earlier = list_segments(folder)[1]
    content, known = earlier.read_bytes(), len(list(read(folder)))
    size = FRAME.size + FRAME.unpack_from(content, HEADER.size)[1]
    record = msgspec.msgpack.decode(content[HEADER.size + FRAME.size : HEADER.size + size])
    record["event"]["type"] = "OfALaterVersion"
    foreign = pack_frame(msgspec.msgpack.encode(record))
    earlier.write_bytes(content[: HEADER.size] + foreign + content[HEADER.size + size :])
    tail = JournalTail(folder)
    assert 0 < len(tail.advance()) == record["seq"] < known
    with pytest.raises(OtherVersion, match="OfALaterVersion"):
        tail.advance()
