"""The store of a reserved node returns exactly what was put, or says what is wrong."""

import errno
import os
from pathlib import Path

import pytest

from spotlight.core.blobs import BlobKind
from spotlight.core.errors import Stopped
from spotlight.node import blob_store
from spotlight.node.blob_store import BlobError, BlobStore


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path)


def test_file_comes_back_through_another_process_s_view_of_the_folder(store: BlobStore, tmp_path: Path) -> None:
    ref = store.put(BlobKind.PICTURE, "000003/0001.png", b"a picture")
    assert (ref.path, ref.size) == ("images/000003/0001.png", 9)
    assert BlobStore(tmp_path).get(ref) == b"a picture"


def test_flights_of_two_writers_share_no_file_and_each_part_comes_back(tmp_path: Path) -> None:
    one, other = BlobStore(tmp_path, "spot-1.1"), BlobStore(tmp_path, "spot-2.1")
    parts = [(writer.append(data), data) for data in (b"one", b"and", b"two") for writer in (one, other)]
    assert len({ref.path for ref, _ in parts}) == 2
    for ref, data in parts:
        assert BlobStore(tmp_path).get(ref) == data


def test_parts_of_one_step_lie_one_after_the_other_and_each_comes_back(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(blob_store, "MOST_VIEWS", 2)
    store, parts = BlobStore(tmp_path, "spot-1.1/0.2"), [b"one", b"and", b"two", b"more"]
    refs = [store.append(b"before"), *store.append_all(parts)]
    assert {ref.path for ref in refs} == {"flights/spot-1.1-0.2.0"}
    assert [(ref.offset, ref.number) for ref in refs] == [(0, 1), (6, 2), (9, 3), (12, 4), (15, 5)]
    assert [store.get(ref) for ref in refs] == [b"before", *parts]


def test_samples_of_an_iteration_share_a_file_in_its_folder(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, "spot-1.1/0.2")
    samples = ((3, b"one"), (4, b"two"), (3, b"three"), (5, b"four"), (3, b"late"))
    refs = [store.append_sample(iteration, data) for iteration, data in samples]
    assert [ref.place for ref in refs] == [
        "payloads/000003/spot-1.1-0.2.0@0+3",
        "payloads/000004/spot-1.1-0.2.0@0+3",
        "payloads/000003/spot-1.1-0.2.0@3+5",
        "payloads/000005/spot-1.1-0.2.0@0+4",
        "payloads/000003/spot-1.1-0.2.1@0+4",
    ]
    assert [store.get(ref) for ref in refs] == [data for _, data in samples]


def test_file_of_flights_ends_at_its_size_and_the_last_part_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(blob_store, "SHARED_FILE_BYTES", 10)
    store = BlobStore(tmp_path, "spot-1.1")
    refs = [store.append(b"123456") for _ in range(4)]
    assert [(ref.number, ref.is_last) for ref in refs] == [(1, False), (2, True), (1, False), (2, True)]
    assert refs[0].path == refs[1].path != refs[2].path == refs[3].path
    assert [store.get(ref) for ref in refs] == [b"123456"] * 4


def test_file_of_flights_replaces_none_of_an_earlier_process(tmp_path: Path) -> None:
    earlier = BlobStore(tmp_path, "spot-1.1").append(b"earlier")
    later = BlobStore(tmp_path, "spot-1.1").append(b"later")
    assert [BlobStore(tmp_path).get(ref) for ref in (earlier, later)] == [b"earlier", b"later"]


def test_bytes_that_a_full_disk_cut_short_are_overwritten_by_the_next_part(tmp_path: Path, monkeypatch) -> None:
    store, write = BlobStore(tmp_path, "spot-1.1"), os.pwritev
    store.append(b"first")
    writes = iter((lambda file, views, offset: write(file, [views[0][:3]], offset), _full))
    monkeypatch.setattr(os, "pwritev", lambda *call: next(writes, write)(*call))
    with pytest.raises(Stopped):
        store.append_all([b"second", b"lost"])
    refs = store.append_all([b"third", b"fourth"])
    assert (tmp_path / refs[0].path).read_bytes() == b"firstthirdfourth"
    assert [store.get(ref) for ref in refs] == [b"third", b"fourth"]


def _full(file: int, views: list[memoryview], offset: int) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_missing_or_shortened_bytes_are_refused(store: BlobStore, tmp_path: Path) -> None:
    ref = store.append(b"a flight")
    (tmp_path / ref.path).write_bytes(b"a fl")
    with pytest.raises(BlobError, match="lost bytes"):
        store.get(ref)
    (tmp_path / ref.path).unlink()
    with pytest.raises(BlobError, match="No such file"):
        store.get(ref)


@pytest.mark.parametrize("store_it", [BlobStore.append, lambda store, data: store.put(BlobKind.PAYLOAD, "0/x", data)])
def test_full_disk_is_a_reason_to_stop_resumably(store: BlobStore, monkeypatch, store_it) -> None:
    monkeypatch.setattr(os, "pwritev", _full)
    with pytest.raises(Stopped, match=r"No space left on device.*free some space.*resume"):
        store_it(store, b"flight")


def test_file_of_flights_that_was_closed_is_continued_unless_it_was_deleted(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, "node")
    first = store.append(b"one")
    store.close()
    second = store.append(b"two")
    assert (second.path, second.offset, second.number) == (first.path, 3, 2)
    store.close()
    (tmp_path / first.path).unlink()
    third = store.append(b"three")
    assert (third.path, third.offset, third.number) == ("flights/node-1", 0, 1)
    assert store.get(third) == b"three"
