"""The files of flights are their own index: a restarted controller reads the parts in them, whatever was cut short."""

from pathlib import Path

import msgspec
import pytest
import torch
from engine_stories import admit, engine, wanted
from tiny_models import tiny_sampling

from spotlight.compute.rollout.engine import Committed
from spotlight.compute.rollout.seal import is_intact
from spotlight.compute.rollout.stored_flights import MOST_HEADER, is_part_intact, stored_parts
from spotlight.control.recovery import StoredPart
from spotlight.core.types import SamplerKind, Window
from spotlight.node import blob_store
from spotlight.node.blob_store import BlobStore

REQUESTS = [wanted(seed, tiny_sampling(SamplerKind.FLOW_SDE, Window(1, 3), steps=6)) for seed in (3, 4)]


@pytest.fixture(scope="module")
def commits() -> list[Committed]:
    """Four commits of two samples, in the order in which a worker sends them."""
    by = engine()
    admit(by, *REQUESTS, commit_every=1)
    return [commit for _ in range(4) for commit in by.step().commits]


def facts(part: StoredPart) -> tuple[object, ...]:
    return part.request, part.attempt, part.step, part.since


def test_parts_come_back_with_what_they_continue_and_with_the_references_that_were_given(
    commits: list[Committed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_store, "SHARED_FILE_BYTES", 3 * len(commits[0].flight))
    stores = [BlobStore(tmp_path, writer) for writer in ("spot-1.1", "spot-2.1")]
    refs = [stores[number % 2].append(commit.flight) for number, commit in enumerate(commits)]
    found = stored_parts(tmp_path)
    known = {part.ref.path + str(part.ref.offset): part for part in found}
    assert len(found) == len(commits) == 8
    for ref, commit in zip(refs, commits, strict=True):
        part = known[ref.path + str(ref.offset)]
        assert facts(part) == (commit.request, commit.attempt, commit.step, commit.since)
        assert part.writer == f"spot-{1 + refs.index(ref) % 2}.1"
        assert msgspec.structs.replace(part.ref, is_last=False) == msgspec.structs.replace(ref, is_last=False)
        assert is_part_intact(tmp_path, part.ref)
    by_seal = {part.ref.digest: part for part in found}
    for part in found:
        assert (by_seal[part.base].step if part.base else 0) == part.since
    lasts = [part.ref for part in found if part.ref.is_last]
    assert sorted(ref.path for ref in lasts) == sorted({ref.path for ref in refs})


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.999])
def test_file_that_is_cut_short_keeps_the_parts_before_the_cut(
    commits: list[Committed], tmp_path: Path, share: float
) -> None:
    store = BlobStore(tmp_path, "spot-1.1")
    refs = [store.append(commit.flight) for commit in commits[:3]]
    file = tmp_path / refs[0].path
    file.write_bytes(file.read_bytes()[: refs[2].offset + int(share * refs[2].size)])
    assert [part.ref.offset for part in stored_parts(tmp_path)] == [ref.offset for ref in refs[:2]]
    assert stored_parts(tmp_path)[-1].ref.is_last


def test_damaged_tensors_are_no_part_of_a_flight_and_those_behind_them_are(
    commits: list[Committed], tmp_path: Path
) -> None:
    store = BlobStore(tmp_path, "spot-1.1")
    refs = [store.append(commit.flight) for commit in commits[:3]]
    file = tmp_path / refs[0].path
    data = bytearray(file.read_bytes())
    data[refs[2].offset - 5] ^= 1
    file.write_bytes(data)
    assert [is_part_intact(tmp_path, part.ref) for part in stored_parts(tmp_path)] == [True, False, True]
    file.unlink()
    assert not is_part_intact(tmp_path, refs[0])


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\0" * 4096,
        b"\xff" * 4096,
        (10).to_bytes(8, "little") + b"not a JSON",
        (2).to_bytes(8, "little") + b"{}" + b"x" * 100,
        (MOST_HEADER + 1).to_bytes(8, "little") + b"{" * 64,
        (29).to_bytes(8, "little") + b'{"x":{"data_offsets":[0,-9]}}',
        (200_005).to_bytes(8, "little") + b'{"x":' + b"[" * 200_000,
    ],
)
def test_garbage_behind_a_part_is_not_read_and_no_error(
    commits: list[Committed], tmp_path: Path, garbage: bytes
) -> None:
    ref = BlobStore(tmp_path, "spot-1.1").append(commits[0].flight)
    file = tmp_path / ref.path
    file.write_bytes(file.read_bytes() + garbage + commits[1].flight)
    (tmp_path / "flights" / "other-0").write_bytes(garbage)
    parts = stored_parts(tmp_path)
    assert parts[0].ref.offset == 0
    assert len(parts) == (2 if not garbage else 1)


def test_flight_of_another_version_of_the_code_is_not_read(commits: list[Committed], tmp_path: Path) -> None:
    BlobStore(tmp_path, "spot-1.1").append(commits[0].flight.replace(b"spotlight-flight-3", b"spotlight-flight-2"))
    BlobStore(tmp_path, "spot-2.1").append(commits[0].flight.replace(b"attempt", b"tempest"))
    assert stored_parts(tmp_path) == []


def test_chain_of_parts_is_the_one_that_a_worker_continues(commits: list[Committed], tmp_path: Path) -> None:
    """The bytes that the found references lead to are a flight, which the engine takes."""
    store = BlobStore(tmp_path, "spot-1.1")
    for commit in commits:
        store.append(commit.flight)
    of = {part.step: part for part in stored_parts(tmp_path) if part.request == REQUESTS[0].id}
    chain = [of[step] for step in (2, 3, 4)]
    data = b"".join(store.get(part.ref) for part in chain)
    assert all(is_intact(store.get(part.ref)) for part in chain)
    by = engine()
    admit(by, REQUESTS[0], attempt=2, flight=data)
    (progress,) = by.progress()
    assert (progress.step, progress.attempt) == (4, 2)
    assert torch.isfinite(by.live[REQUESTS[0].id].x_SC).all()
