"""A node's copies of weights: when they are made and deleted, what late workers receive, what their writer adopts."""

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from spotlight.core.crew_messages import Adopt
from spotlight.core.errors import EnvironmentProblem
from spotlight.core.messages import Load, PublishedWeights
from spotlight.core.types import Version, WorkerId
from spotlight.core.work import Policy, WeightsId
from spotlight.node import weight_cache
from spotlight.node.weight_cache import HEADROOM, WeightCache, Written

SLOW, QUICK = WorkerId("spot-1.1/0.1"), WorkerId("spot-1.1/1.1")
TRAINS, OTHER = WorkerId("reserved-1.1/0.1"), WorkerId("reserved-1.1/0.2")
FIRST, SECOND = WeightsId(Version(1)), WeightsId(Version(2))
AVERAGE = WeightsId(Version(2), Policy.AVERAGE)


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
    return WeightCache(folder, folder.parent / "disk", warn)


def taken(cache: WeightCache, load: Load, *workers: WorkerId) -> Load:
    return asyncio.run(cache.take(load, lambda: workers))


def files(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_published_file_is_copied_once_and_a_late_worker_receives_the_copy(tmp_path, announced):
    cache = cache_in(tmp_path / "node")
    local = taken(cache, announced(1))
    assert local.path == str(tmp_path / "node" / "behaviour-1.safetensors")
    assert (tmp_path / "node" / "behaviour-1.safetensors").read_bytes() == bytes([1]) * 1000
    (tmp_path / "publisher" / "behaviour-1.safetensors").unlink()
    assert taken(cache, Load(weights=local.weights, digest="d1", path=announced(1).path)) == local
    assert cache.current() == (local,)


def test_file_that_is_not_kept_stays_until_every_worker_has_moved_on(tmp_path, announced):
    cache = cache_in(tmp_path / "node")
    taken(cache, announced(1), SLOW, QUICK)
    second = taken(cache, announced(2), SLOW, QUICK)
    assert cache.current() == (second,)
    cache.caught_up(QUICK, WeightsId(Version(2)))
    cache.caught_up(SLOW, WeightsId(Version(1)))
    assert files(tmp_path / "node") == ["behaviour-1.safetensors", "behaviour-2.safetensors"]
    cache.gone(SLOW)
    assert files(tmp_path / "node") == ["behaviour-2.safetensors"]


def test_set_that_is_wanted_again_before_its_file_is_deleted_stays(tmp_path, announced):
    cache = cache_in(tmp_path / "node")
    taken(cache, announced(1), SLOW)
    taken(cache, announced(2), SLOW)
    taken(cache, announced(1, 2), SLOW)
    cache.caught_up(SLOW, WeightsId(Version(2)))
    cache.caught_up(SLOW, WeightsId(Version(1)))
    assert files(tmp_path / "node") == ["behaviour-1.safetensors", "behaviour-2.safetensors"]


def test_reply_to_an_early_announcement_does_not_free_a_later_one(tmp_path, announced):
    cache = cache_in(tmp_path / "node")
    taken(cache, announced(1), SLOW)
    taken(cache, announced(2, 1), SLOW)
    taken(cache, announced(1, 2), SLOW)
    taken(cache, announced(3, 1), SLOW)
    cache.caught_up(SLOW, WeightsId(Version(1)))
    assert "behaviour-2.safetensors" in files(tmp_path / "node")
    cache.caught_up(SLOW, WeightsId(Version(3)))
    assert files(tmp_path / "node") == ["behaviour-1.safetensors", "behaviour-3.safetensors"]


def test_publishers_own_file_is_neither_copied_nor_deleted(tmp_path, announced):
    cache = cache_in(tmp_path / "publisher")
    load = announced(1)
    assert taken(cache, load) == load
    taken(cache, announced(2))
    assert files(tmp_path / "publisher") == ["behaviour-1.safetensors", "behaviour-2.safetensors"]


def test_missing_file_is_reported_and_leaves_nothing_behind(tmp_path, announced):
    cache = cache_in(tmp_path / "node")
    load = announced(1)
    (tmp_path / "publisher" / "behaviour-1.safetensors").unlink()
    with pytest.raises(EnvironmentProblem, match=r"behaviour-1.safetensors are gone .*No such file"):
        taken(cache, load)
    assert cache.current() == ()
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


def test_copy_without_room_in_the_store_goes_to_disk_with_one_warning_and_is_deleted_when_it_may(crowded, announced):
    warnings = []
    cache = cache_in(crowded, warnings.append)
    disk = crowded.parent / "disk"
    local = taken(cache, announced(1), SLOW)
    assert local.path == str(disk / "behaviour-1.safetensors")
    assert files(crowded) == []
    second = taken(cache, announced(2), SLOW)
    assert cache.current() == (second,)
    cache.caught_up(SLOW, WeightsId(Version(2)))
    assert files(disk) == ["behaviour-2.safetensors"]
    (warning,) = warnings
    assert "weights go to" in warning
    assert "cluster.store" in warning


def test_copy_without_room_anywhere_is_an_error_with_the_free_bytes(crowded, announced, monkeypatch):
    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("spotlight.node.weight_cache.copy_file", full)
    cache = cache_in(crowded)
    with pytest.raises(EnvironmentProblem, match=r"No space left on device.*are free in.*set cluster.store"):
        taken(cache, announced(1))
    assert cache.current() == ()


@pytest.fixture
def flaky(monkeypatch):
    """The first copy of each file with one of these names fails."""
    names, real = [], weight_cache.copy_file

    def copy_file(source, target):
        if source.name in names:
            names.remove(source.name)
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(weight_cache, "copy_file", copy_file)
    return names


def test_announcement_that_is_tried_again_is_still_taken_before_those_that_came_after_it(tmp_path, announced, flaky):
    async def scenario():
        flaky.append("behaviour-1.safetensors")
        cache = cache_in(tmp_path / "node")
        order = []

        async def take(load):
            order.append((await cache.take(load, lambda: (SLOW,))).weights.version)

        await asyncio.gather(take(announced(1)), take(announced(2, 1)), take(announced(3, 1, 2)))
        return order, [load.weights.version for load in cache.current()]

    assert asyncio.run(scenario()) == ([1, 2, 3], [1, 2, 3])


def test_set_that_a_later_announcement_no_longer_keeps_is_passed_over_though_its_file_is_gone(tmp_path, announced):
    async def scenario():
        cache = cache_in(tmp_path / "node")
        old, new = announced(1), announced(2)
        Path(old.path).unlink()
        taken = await asyncio.gather(cache.take(old, lambda: (SLOW,)), cache.take(new, lambda: (SLOW,)))
        return taken[0], taken[1].weights.version, [load.weights.version for load in cache.current()]

    assert asyncio.run(scenario()) == (None, 2, [2])


def test_copy_that_finds_the_store_filled_by_another_node_goes_to_disk(tmp_path, announced, monkeypatch):
    node, real = tmp_path / "node", weight_cache.copy_file

    def copy_file(source, target):
        if target.parent == node:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(weight_cache, "copy_file", copy_file)
    warnings = []
    local = taken(cache_in(node, warnings.append), announced(1))
    assert local.path == str(tmp_path / "disk" / "behaviour-1.safetensors")
    assert len(warnings) == 1


# --- adoption by the writer ---


def announcement(weights: WeightsId, *keep: WeightsId) -> Load:
    return Load(weights=weights, digest=f"digest of {weights}", path=f"{weights}", keep=keep)


def adopt(weights: WeightsId, *keep: WeightsId) -> Adopt:
    return Adopt(weights=weights, digest=f"digest of {weights}", keep=keep)


def wrote(*sets: WeightsId) -> Written:
    written = Written()
    for weights in sets:
        written.wrote(TRAINS, PublishedWeights(weights=weights, digest=f"digest of {weights}", size=1, step=1))
    return written


def test_writer_adopts_at_once_and_once():
    written = wrote(SECOND)
    assert written.announced(announcement(SECOND, FIRST, SECOND)) == (TRAINS, adopt(SECOND, FIRST, SECOND))
    assert written.announced(announcement(SECOND, FIRST, SECOND)) is None


def test_set_that_was_written_elsewhere_or_of_an_older_version_is_not_adopted():
    assert wrote().announced(announcement(SECOND)) is None
    assert wrote(FIRST, SECOND).announced(announcement(FIRST)) is None


def test_set_whose_writer_is_gone_is_not_adopted():
    written = wrote(SECOND)
    written.gone(OTHER)
    assert written.announced(announcement(SECOND)) is not None
    written = wrote(SECOND)
    written.gone(TRAINS)
    assert written.announced(announcement(SECOND)) is None


def test_writer_adopts_beside_other_sets_of_the_same_announcement():
    written = wrote(SECOND)
    assert written.announced(announcement(FIRST, FIRST, SECOND)) is None
    assert written.announced(announcement(SECOND, FIRST, SECOND)) is not None


def test_announcement_that_keeps_other_sets_is_not_overtaken_in_transit():
    written = wrote(SECOND, AVERAGE)
    behaviour = announcement(SECOND, FIRST, SECOND)
    assert written.announced(behaviour) is not None
    both = announcement(AVERAGE, SECOND, AVERAGE)
    assert written.announced(both) is None
    for each in (behaviour, both):
        written.arrived(each)
    assert written.announced(both) == (TRAINS, adopt(AVERAGE, SECOND, AVERAGE))
