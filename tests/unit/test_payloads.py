"""The run's files of accepted samples: whole, verified, and deleted when a checkpoint covers them."""

from pathlib import Path

import pytest
import torch
from safetensors.numpy import save

from spotlight.compute.rollout.flight import Flight, Payload
from spotlight.controller.payloads import PayloadFolder
from spotlight.core.blobs import BlobKind
from spotlight.core.types import NodeId, PromptId, Sample, Sampling, Size, Version
from spotlight.core.work import Policy, Request, WeightsId, Work
from spotlight.node import blob_store
from spotlight.node.blob_store import BlobStore


def request(work: Work = Work.ROLLOUT, iteration: int = 3, group: int = 1, seed: int = 7) -> Request:
    sampling = Sampling(steps=4, size=Size(8, 8))
    sample = Sample(prompt=PromptId("p"), seed=seed, sampling=sampling, version=Version(0))
    return Request(work=work, iteration=iteration, group=group, sample=sample)


def payload(value: float) -> bytes:
    x0, none = torch.full((4, 3), value), torch.zeros(0, 4, 3)
    sample = Payload(
        request=request(),
        weights_digest="d",
        x0_SC=x0,
        path_KSC=none,
        log_prob_K=torch.zeros(0),
        mean_KSC=none,
    )
    return sample.to_bytes()


@pytest.fixture
def storage(tmp_path: Path) -> PayloadFolder:
    return PayloadFolder(tmp_path, lambda: None)


def test_payload_is_whole_until_its_file_is_lost_or_altered(storage: PayloadFolder, tmp_path: Path) -> None:
    ours, another = payload(0.5), payload(0.25)
    ref = BlobStore(tmp_path).put(BlobKind.PAYLOAD, "000003/x.safetensors", ours)
    assert storage.is_whole(ref.path, ref.digest)
    for wrong in (ours[:-1], ours[:-1] + b"\1", another, b"", b"half"):
        (tmp_path / ref.path).write_bytes(wrong)
        assert not storage.is_whole(ref.path, ref.digest)
    (tmp_path / ref.path).unlink()
    assert not storage.is_whole(ref.path, ref.digest)


def test_payload_in_a_shared_file_is_whole_until_its_own_bytes_are_lost_or_altered(
    storage: PayloadFolder, tmp_path: Path
) -> None:
    store = BlobStore(tmp_path, "spot-1.1/0.1")
    first, second = (store.append_sample(3, payload(value)) for value in (0.5, 0.25))
    assert first.path == second.path
    assert all(storage.is_whole(ref.place, ref.digest) for ref in (first, second))
    assert not storage.is_whole(first.place, second.digest)
    data = (tmp_path / first.path).read_bytes()
    (tmp_path / first.path).write_bytes(data[:-1])
    assert [storage.is_whole(ref.place, ref.digest) for ref in (first, second)] == [True, False]
    (tmp_path / first.path).unlink()
    assert not storage.is_whole(first.place, first.digest)


def test_payloads_of_covered_iterations_go_and_all_else_stays(storage: PayloadFolder, tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    old, new = (store.put(BlobKind.PAYLOAD, f"{iteration:06d}/x", payload(0.5)) for iteration in (3, 4))
    others = store.append(b"flight"), store.put(BlobKind.PICTURE, "000003/x", b"picture")
    storage.covered(4)
    storage.settle()
    assert [(tmp_path / ref.path).exists() for ref in (old, new, *others)] == [False, True, True, True]


def test_file_of_flights_goes_with_its_last_part(
    storage: PayloadFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_store, "SHARED_FILE_BYTES", 10)
    store = BlobStore(tmp_path)
    refs = [store.append(b"123456") for _ in range(3)]
    for released, is_there in (((), True), (refs[1:2], True), (refs[:1], False)):
        storage.release(released)
        storage.settle()
        assert (tmp_path / refs[0].path).exists() is is_there
    storage.release(refs[2:])
    storage.settle()
    assert (tmp_path / refs[2].path).exists(), "more parts may follow in this file"


def test_files_of_a_lost_node_go_though_it_did_not_report_all_of_their_parts(
    storage: PayloadFolder, tmp_path: Path
) -> None:
    lost, other = BlobStore(tmp_path, "spot-1.1"), BlobStore(tmp_path, "spot-1.11")
    needed, released, _ = [lost.append(b"123456") for _ in range(3)]
    kept = other.append(b"123456")
    storage.release([released])
    storage.writer_gone(NodeId("spot-1.1"), lambda: {needed.path: 1, kept.path: 1})
    storage.settle()
    assert (tmp_path / needed.path).exists()
    storage.release([needed])
    storage.settle()
    assert not (tmp_path / needed.path).exists()
    unreported = BlobStore(tmp_path, "spot-2.1").append(b"123456")
    storage.writer_gone(NodeId("spot-2.1"), lambda: {kept.path: 1})
    storage.settle()
    assert not (tmp_path / unreported.path).exists()
    assert (tmp_path / kept.path).exists()


def test_files_of_a_lost_worker_go_and_those_of_its_node_s_others_stay(storage: PayloadFolder, tmp_path: Path) -> None:
    lost, other, next_life = (BlobStore(tmp_path, f"spot-1.1/{life}") for life in ("0.1", "1.1", "0.11"))
    unreported, *kept = [store.append(b"123456") for store in (lost, other, next_life)]
    storage.writer_gone("spot-1.1/0.1", dict)
    storage.settle()
    assert not (tmp_path / unreported.path).exists()
    assert all((tmp_path / ref.path).exists() for ref in kept)
    storage.writer_gone("spot-1.1", dict)
    storage.settle()
    assert not any((tmp_path / ref.path).exists() for ref in kept)


def test_full_file_of_a_node_that_is_gone_is_deleted_though_one_of_its_parts_was_never_reported(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("spotlight.node.blob_store.SHARED_FILE_BYTES", 12)
    storage, store = PayloadFolder(tmp_path, lambda: None), BlobStore(tmp_path, "spot-1.1")
    _, last = store.append(b"123456"), store.append(b"123456")
    assert last.is_last
    storage.writer_gone(NodeId("spot-1.1"), lambda: {last.path: 1})
    storage.release([last])
    storage.settle()
    assert not (tmp_path / last.path).exists()


def flight(step: int) -> bytes:
    nothing = torch.zeros(0)
    return Flight(
        request=request(), attempt=1, step=step, weights_digest="d", x_SC=torch.zeros(4, 3), path_RSC=nothing,
        log_prob_R=nothing, mean_RSC=nothing,
    ).to_bytes()  # fmt: skip


def test_flights_stay_over_a_restart_until_no_part_of_their_file_is_needed(tmp_path: Path) -> None:
    store, other = BlobStore(tmp_path, "spot-1.1"), BlobStore(tmp_path, "spot-2.1")
    refs = [store.append(flight(step)) for step in (1, 2)]
    unneeded = other.append(flight(1))
    (tmp_path / "flights" / "garbage").write_bytes(b"garbage")
    storage = PayloadFolder(tmp_path, lambda: None)
    parts = storage.flights()
    assert [(part.request, part.step) for part in parts] == [(request().id, step) for step in (1, 2, 1)]
    assert all(storage.is_intact(part.ref) for part in parts)
    storage.release([part.ref for part in parts if part.step == 1])
    storage.settle()
    assert (tmp_path / refs[1].path).exists()
    assert not (tmp_path / unneeded.path).exists()
    assert not (tmp_path / "flights" / "garbage").exists()
    storage.release([parts[1].ref])
    storage.settle()
    assert not (tmp_path / refs[1].path).exists()


def test_only_wanted_weights_stay(storage: PayloadFolder, tmp_path: Path) -> None:
    sets = [WeightsId(Version(version), policy) for version in (1, 2) for policy in Policy]
    (tmp_path / "weights").mkdir()
    for weights in sets:
        (tmp_path / storage.weights_path(weights)).write_bytes(save({}, metadata={"fingerprint": str(weights)}))
    storage.keep_weights(sets[2:3])
    assert [weights for weights in sets if storage.has_weights(weights, str(weights))] == sets[2:3]


def test_weights_of_other_bytes_do_not_count_as_there(storage: PayloadFolder, tmp_path: Path) -> None:
    weights = WeightsId(Version(1))
    assert not storage.has_weights(weights, "ours")
    (tmp_path / "weights").mkdir()
    (tmp_path / storage.weights_path(weights)).write_bytes(save({}, metadata={"fingerprint": "another gang's"}))
    assert not storage.has_weights(weights, "ours")
    (tmp_path / storage.weights_path(weights)).write_bytes(b"half a file")
    assert not storage.has_weights(weights, "ours")
