"""The journal after damage: torn tails are cut, damage is refused and located, nothing is silently lost."""

import math
import pickle

import msgspec
import pytest
from journal_stories import CALM, SMALL, HandClock, lease, segments, write

from spotlight.core.events import Checkpointed, Record
from spotlight.core.journal import (
    Journal,
    JournalCorrupt,
    read,
)
from spotlight.core.journal_tail import JournalTail
from spotlight.core.run_version import OtherVersion
from spotlight.core.segments import pack_frame, pack_header

# -- torn tails and damage ---------------------------------------------------------------------------------------------


def test_a_tail_torn_at_any_byte_is_cut_and_reported(tmp_path):
    written = write(tmp_path, 3)
    (segment,) = segments(tmp_path)
    whole = segment.read_bytes()
    write(tmp_path / "two", 2)
    start = len(segments(tmp_path / "two")[0].read_bytes())
    for cut in range(start, len(whole)):
        segment.write_bytes(whole[:cut])
        assert list(read(tmp_path)) == written[:2]
        with Journal.open(tmp_path, HandClock().now, CALM) as journal:
            assert journal.recovery.records == 2
            assert journal.recovery.torn_bytes == cut - start
            assert journal.recovery.last == written[1]
            journal.append(lease(7))
        assert [record.event for record in read(tmp_path)] == [lease(0), lease(1), lease(7)]


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"\xc1\xc1\x05\0\0\0abcdhello", bytes(range(256))])
def test_rubbish_after_the_last_record_is_a_torn_tail(tmp_path, tail):
    written = write(tmp_path, 3)
    with segments(tmp_path)[0].open("ab") as file:
        file.write(tail)
    assert list(read(tmp_path)) == written
    with Journal.open(tmp_path, HandClock().now, CALM) as journal:
        assert journal.recovery.torn_bytes == len(tail)


def test_a_flipped_byte_anywhere_in_a_middle_record_is_refused_and_nothing_is_changed(tmp_path):
    write(tmp_path / "one", 1)
    start = len(segments(tmp_path / "one")[0].read_bytes())
    write(tmp_path / "two", 2)
    stop = len(segments(tmp_path / "two")[0].read_bytes())
    folder = tmp_path / "journal"
    write(folder, 3)
    (segment,) = segments(folder)
    whole = segment.read_bytes()
    for place in range(start, stop):
        damaged = whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :]
        segment.write_bytes(damaged)
        with pytest.raises(JournalCorrupt) as caught:
            Journal.open(folder, HandClock().now, CALM)
        assert (caught.value.segment, caught.value.offset, caught.value.seq) == (segment.name, start, 1)
        assert segment.read_bytes() == damaged


def test_damage_names_the_record_and_offers_the_last_checkpoint_before_it(tmp_path):
    with Journal.create(tmp_path, HandClock().now, SMALL) as journal:
        journal.append(Checkpointed(step=4, path="checkpoints/step-4"))
        while len(segments(tmp_path)) < 2:
            journal.append(lease(1))
        journal.append(Checkpointed(step=8, path="checkpoints/step-8"))
        while len(segments(tmp_path)) < 4:
            journal.append(lease(2))
        journal.append(Checkpointed(step=12, path="checkpoints/step-12"))
    damaged = segments(tmp_path)[2]
    data = bytearray(damaged.read_bytes())
    data[-3] ^= 1
    damaged.write_bytes(bytes(data))
    with pytest.raises(JournalCorrupt, match="checkpoints/step-8 \\(8 steps\\)") as caught:
        list(read(tmp_path))
    error = caught.value
    assert error.exit_code == 2
    assert error.checkpoint == Checkpointed(step=8, path="checkpoints/step-8")
    assert f"record {error.seq} of the journal" in str(error)
    assert pickle.loads(pickle.dumps(error)).checkpoint == error.checkpoint


def test_damage_before_any_checkpoint_names_no_checkpoint(tmp_path):
    write(tmp_path, 3)
    (segment,) = segments(tmp_path)
    data = bytearray(segment.read_bytes())
    data[40] ^= 1
    segment.write_bytes(bytes(data))
    with pytest.raises(JournalCorrupt, match="no checkpoint was made before it"):
        list(read(tmp_path))


@pytest.mark.parametrize("number", [0, 1])
def test_a_missing_segment_is_refused_even_if_the_others_are_renamed(tmp_path, number):
    write(tmp_path, 60, SMALL)
    gone, *later = segments(tmp_path)[number:]
    gone.unlink()
    with pytest.raises(JournalCorrupt, match="is missing"):
        list(read(tmp_path))
    for path, name in zip(later, [gone.name, *[path.name for path in later]], strict=False):
        path.rename(tmp_path / name)
    with pytest.raises(JournalCorrupt, match="is missing"):
        list(read(tmp_path))


def test_a_record_that_bears_another_number_is_refused(tmp_path):
    frames = [pack_frame(msgspec.msgpack.encode(Record(seq, 0.0, lease(seq)))) for seq in (0, 2)]
    (tmp_path / "segment-000000.log").write_bytes(pack_header(0) + b"".join(frames))
    with pytest.raises(JournalCorrupt, match="it has the number 2") as caught:
        list(read(tmp_path))
    assert caught.value.seq == 1


@pytest.mark.parametrize("at", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("number", [0, 1])
def test_a_record_whose_time_is_no_time_is_refused_by_reader_and_follower(tmp_path, at, number):
    times = [0.0, 1.0]
    times[number] = at
    frames = [pack_frame(msgspec.msgpack.encode(Record(seq, time, lease(seq)))) for seq, time in enumerate(times)]
    (tmp_path / "segment-000000.log").write_bytes(pack_header(0) + b"".join(frames))
    with pytest.raises(JournalCorrupt, match=f"record {number} .* its time is {at}"):
        list(read(tmp_path))
    tail, followed = JournalTail(tmp_path), []
    with pytest.raises(JournalCorrupt, match=f"its time is {at}"):
        followed.extend(record for _ in range(2) for record in tail.advance())
    assert len(followed) == number


def test_a_record_of_an_unknown_event_is_another_version_s(tmp_path):
    frame = pack_frame(msgspec.msgpack.encode({"seq": 0, "at": 0.0, "event": {"type": "Teleported"}}))
    (tmp_path / "segment-000000.log").write_bytes(pack_header(0) + frame)
    with pytest.raises(OtherVersion, match="a record of an unknown kind"):
        list(read(tmp_path))


def test_a_cut_segment_that_is_not_the_last_is_refused(tmp_path):
    write(tmp_path, 60, SMALL)
    first = segments(tmp_path)[0]
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(JournalCorrupt, match="later segments follow"):
        list(read(tmp_path))


def test_a_damaged_header_is_refused_with_the_checkpoint_before_it(tmp_path):
    with Journal.create(tmp_path, HandClock().now, SMALL) as journal:
        journal.append(Checkpointed(step=4, path="checkpoints/step-4"))
        while len(segments(tmp_path)) < 2:
            journal.append(lease(1))
    last = segments(tmp_path)[1]
    last.write_bytes(b"?" + last.read_bytes()[1:])
    with pytest.raises(JournalCorrupt, match="header") as caught:
        Journal.open(tmp_path, HandClock().now)
    assert caught.value.checkpoint == Checkpointed(step=4, path="checkpoints/step-4")


def test_a_journal_of_another_schema_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("spotlight.core.segments.SCHEMA", 99)
    write(tmp_path, 1)
    monkeypatch.undo()
    with pytest.raises(OtherVersion, match="format 99 instead of"):
        list(read(tmp_path))
