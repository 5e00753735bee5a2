"""A node's copies of weights: where they are made, and what happens without room or with a failing disk."""

import asyncio
import errno
import shutil
from pathlib import Path

import msgspec
import pytest

from spotlight.core.errors import EnvironmentProblem
from spotlight.core.messages import Load
from spotlight.core.types import Version
from spotlight.core.work import WeightsId
from spotlight.node import weight_cache
from spotlight.node.weight_cache import HEADROOM, NearFiles, WeightCache


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(weight_cache, "PAUSES_S", (0.0, 0.0))


@pytest.fixture
def announced(tmp_path):
    """Publishes a file of a version and returns its announcement."""

    def announce(version: int, *keep: int) -> Load:
        path = tmp_path / "publisher" / f"behaviour-{version}.safetensors"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([version]) * 1000)
        kept = tuple(WeightsId(Version(number)) for number in keep)
        return Load(weights=WeightsId(Version(version)), digest=f"d{version}", path=str(path), keep=kept)

    return announce


def cache_in(folder, warn=lambda problem: None) -> WeightCache:
    return WeightCache(folder, folder.parent / "disk", NearFiles(folder.parent), warn)


def copied(cache: WeightCache, load: Load) -> Load | None:
    return asyncio.run(cache.copy(load, lambda: True))


def files(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_published_file_is_copied_once(tmp_path, announced):
    cache = cache_in(tmp_path / "node")
    local = copied(cache, announced(1))
    assert local.path == str(tmp_path / "node" / "behaviour-1.safetensors")
    assert (tmp_path / "node" / "behaviour-1.safetensors").read_bytes() == bytes([1]) * 1000
    (tmp_path / "publisher" / "behaviour-1.safetensors").unlink()
    assert copied(cache, Load(weights=local.weights, digest="d1", path=announced(1).path)) == local


def test_damaged_copy_is_copied_again_and_not_passed_on_meanwhile(tmp_path, announced):
    dropped, cache = [], cache_in(tmp_path / "node")
    cache._files.drop = dropped.append
    load = announced(1)
    local = copied(cache, load)
    Path(local.path).write_bytes(b"damaged")
    assert copied(cache, load) == local
    assert Path(local.path).read_bytes() == b"damaged", "it is one copy as long as nobody finds the damage"
    cache.spoil(local.path)
    assert dropped == [load.path]
    assert Path(local.path).exists(), "a worker may be reading it"
    assert copied(cache, load) == local
    assert Path(local.path).read_bytes() == bytes([1]) * 1000
    cache.delete(local.path)
    assert dropped == [load.path] * 2


def test_file_of_another_digest_or_one_that_was_deleted_is_copied_again(tmp_path, announced):
    cache = cache_in(tmp_path / "node")
    load = announced(1)
    local = copied(cache, load)
    Path(load.path).write_bytes(b"other bytes")
    assert copied(cache, msgspec.structs.replace(load, digest="other")).path == local.path
    assert Path(local.path).read_bytes() == b"other bytes"
    cache.delete(local.path)
    assert files(tmp_path / "node") == []
    copied(cache, msgspec.structs.replace(load, digest="other"))
    assert files(tmp_path / "node") == ["behaviour-1.safetensors"]


def test_missing_file_is_reported_and_leaves_nothing_behind(tmp_path, announced):
    cache = cache_in(tmp_path / "node")
    load = announced(1)
    (tmp_path / "publisher" / "behaviour-1.safetensors").unlink()
    with pytest.raises(EnvironmentProblem, match=r"behaviour-1.safetensors are gone .*No such file"):
        copied(cache, load)
    assert files(tmp_path / "node") == []


@pytest.fixture
def crowded(tmp_path, monkeypatch):
    """The store has less room than a copy and its headroom; the disk has plenty."""
    usage, node = shutil.disk_usage, tmp_path / "node"

    def free(folder):
        real = usage(folder)
        return real._replace(free=HEADROOM + 999) if folder == node else real

    monkeypatch.setattr(shutil, "disk_usage", free)
    return node


def test_copies_without_room_in_the_store_go_to_disk_with_one_warning(crowded, announced):
    warnings = []
    cache = cache_in(crowded, warnings.append)
    disk = crowded.parent / "disk"
    assert copied(cache, announced(1)).path == str(disk / "behaviour-1.safetensors")
    assert copied(cache, announced(2)).path == str(disk / "behaviour-2.safetensors")
    assert files(crowded) == []
    (warning,) = warnings
    assert "weights go to" in warning
    assert "cluster.store" in warning


def test_copy_without_room_anywhere_is_an_error_with_the_free_bytes(crowded, announced, monkeypatch):
    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("spotlight.node.weight_cache.copy_file", full)
    cache = cache_in(crowded)
    with pytest.raises(EnvironmentProblem, match=r"No space left on device.*are free in.*set cluster.store"):
        copied(cache, announced(1))


def test_failed_copy_is_tried_again_while_it_is_wanted(tmp_path, announced, monkeypatch):
    failures, real = [1, 1], weight_cache.copy_file

    def copy_file(source, target):
        if failures:
            failures.pop()
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(weight_cache, "copy_file", copy_file)
    cache = cache_in(tmp_path / "node")
    wanted = iter([True, False])
    assert asyncio.run(cache.copy(announced(1), lambda: next(wanted))) is None
    assert len(failures) == 1
    assert copied(cache, announced(1)).path == str(tmp_path / "node" / "behaviour-1.safetensors")


def test_copy_that_finds_the_store_filled_by_another_node_goes_to_disk(tmp_path, announced, monkeypatch):
    node, real = tmp_path / "node", weight_cache.copy_file

    def copy_file(source, target):
        if target.parent == node:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(weight_cache, "copy_file", copy_file)
    warnings = []
    local = copied(cache_in(node, warnings.append), announced(1))
    assert local.path == str(tmp_path / "disk" / "behaviour-1.safetensors")
    assert len(warnings) == 1
