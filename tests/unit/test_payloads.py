"""The run's files of accepted samples: whole, verified, and deleted when a checkpoint covers them."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save

from spotlight.compute.rollout.flight import Payload
from spotlight.controller.payloads import PICTURES, PayloadFolder
from spotlight.core.errors import Stopped
from spotlight.core.types import PromptId, Sample, Sampling, Size, Version
from spotlight.core.work import Policy, Request, WeightsId, Work


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
    name, digest = storage.keep(request(), ours)
    assert storage.is_whole(name, digest)
    for wrong in (ours[:-1], ours[:-1] + b"\1", another, b"", b"half"):
        (tmp_path / name).write_bytes(wrong)
        assert not storage.is_whole(name, digest)
    (tmp_path / name).unlink()
    assert not storage.is_whole(name, digest)


def test_payload_that_was_damaged_on_its_way_is_found_before_it_is_trained(storage: PayloadFolder) -> None:
    """The digest is the sender's, so that it describes what was made, not what arrived."""
    sent = bytearray(payload(0.5))
    sent[-1] ^= 1
    name, digest = storage.keep(request(), bytes(sent))
    assert not storage.is_whole(name, digest)


def test_payloads_of_covered_iterations_go_and_later_ones_stay(storage: PayloadFolder, tmp_path: Path) -> None:
    old, _ = storage.keep(request(iteration=3), b"old")
    new, _ = storage.keep(request(iteration=4), b"new")
    storage.covered(4)
    assert not (tmp_path / old).exists()
    assert (tmp_path / new).exists()


def test_evaluation_keeps_the_picture_that_was_drawn_of_the_first_prompts_only(
    storage: PayloadFolder, tmp_path: Path
) -> None:
    picture = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    name, _ = storage.keep(request(Work.EVALUATION, group=0), save({"image": picture}))
    assert np.array_equal(np.asarray(Image.open(tmp_path / name)), picture)
    assert storage.keep(request(Work.EVALUATION, group=PICTURES), save({"image": picture})) is None
    assert storage.keep(request(Work.AUDIT), b"") is None


def test_full_disk_stops_the_run_resumably(
    storage: PayloadFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(Stopped, match=r"rollout/3/1/7 .*No space left on device.*free some space"):
        storage.keep(request(), b"tensors")


def test_only_wanted_weights_stay(storage: PayloadFolder, tmp_path: Path) -> None:
    sets = [WeightsId(Version(version), policy) for version in (1, 2) for policy in Policy]
    (tmp_path / "weights").mkdir()
    for weights in sets:
        Path(storage.weights_path(weights)).write_bytes(save({}, metadata={"fingerprint": str(weights)}))
    storage.keep_weights(sets[2:3])
    assert [weights for weights in sets if storage.has_weights(weights, str(weights))] == sets[2:3]


def test_weights_of_other_bytes_do_not_count_as_there(storage: PayloadFolder, tmp_path: Path) -> None:
    weights = WeightsId(Version(1))
    assert not storage.has_weights(weights, "ours")
    (tmp_path / "weights").mkdir()
    Path(storage.weights_path(weights)).write_bytes(save({}, metadata={"fingerprint": "another gang's"}))
    assert not storage.has_weights(weights, "ours")
    Path(storage.weights_path(weights)).write_bytes(b"half a file")
    assert not storage.has_weights(weights, "ours")
