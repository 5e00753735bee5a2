"""Large files are copied by several threads: every byte, or an error."""

import os

import pytest

from spotlight.core import file_copy
from spotlight.core.file_copy import copy_file


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 12_345])
def test_copy_has_every_byte_whatever_the_chunks(tmp_path, monkeypatch, size):
    monkeypatch.setattr(file_copy, "CHUNK", 1000)
    monkeypatch.setattr(file_copy, "WORTH_THREADS", 1)
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_bytes(os.urandom(size))
    target.write_bytes(b"what was there before" * 1000)
    copy_file(source, target)
    assert target.read_bytes() == source.read_bytes()


def test_short_reads_are_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(file_copy, "WORTH_THREADS", 1)
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, rooms, start: whole(file, [rooms[0][:7]], start))
    source = tmp_path / "a"
    source.write_bytes(os.urandom(1000))
    copy_file(source, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == source.read_bytes()


def test_source_that_is_shorter_than_its_size_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(file_copy, "WORTH_THREADS", 1)
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, rooms, start: whole(file, rooms, start) if start else 0)
    source = tmp_path / "a"
    source.write_bytes(bytes(1000))
    with pytest.raises(OSError, match="ends at byte 0"):
        copy_file(source, tmp_path / "b")


@pytest.mark.parametrize("number", file_copy.CANNOT_MAP)
@pytest.mark.parametrize("step", ["os.posix_fallocate", "mmap.mmap"])
def test_file_system_that_cannot_map_or_reserve_is_written_in_order(tmp_path, monkeypatch, step, number):
    def refused(*_given):
        raise OSError(number, "not here")

    monkeypatch.setattr(file_copy, "WORTH_THREADS", 1)
    monkeypatch.setattr(step, refused)
    source = tmp_path / "a"
    source.write_bytes(os.urandom(1000))
    copy_file(source, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == source.read_bytes()


def test_room_is_reserved_before_a_page_is_written(tmp_path, monkeypatch):
    def full(*_given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_copy, "WORTH_THREADS", 1)
    monkeypatch.setattr(os, "posix_fallocate", full)
    source = tmp_path / "a"
    source.write_bytes(bytes(1000))
    with pytest.raises(OSError, match="No space left"):
        copy_file(source, tmp_path / "b")
