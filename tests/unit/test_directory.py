"""The directory: which workers live on which node."""

from spotlight.control.directory import Directory, KnownWorker, PublishedSet
from spotlight.core.types import NodeId, Version, WorkerId
from spotlight.core.work import WeightsId

NODE, OTHER = NodeId("spot-1.1"), NodeId("spot-2.1")


def introduced(*names: str) -> Directory:
    directory = Directory()
    for name in names:
        directory.introduce(WorkerId(name), KnownWorker(node=NodeId(name.partition("/")[0]), trains=False))
    return directory


def test_workers_of_a_node_are_its_own_in_order():
    directory = introduced("spot-1.1/1.1", "spot-2.1/0.1", "spot-1.1/0.1")
    assert directory.workers_of(NODE) == ["spot-1.1/0.1", "spot-1.1/1.1"]
    assert directory.workers_of(NodeId("spot-3.1")) == []


def test_forgotten_worker_is_no_longer_of_its_node_and_forgetting_it_twice_does_nothing():
    directory = introduced("spot-1.1/0.1", "spot-2.1/0.1")
    forgotten = directory.forget(WorkerId("spot-1.1/0.1"))
    assert forgotten is not None
    assert forgotten.node == NODE
    assert directory.workers_of(NODE) == []
    assert directory.workers_of(OTHER) == ["spot-2.1/0.1"]
    assert directory.forget(WorkerId("spot-1.1/0.1")) is None


def test_worker_whose_hello_comes_twice_is_listed_once():
    directory = introduced("spot-1.1/0.1", "spot-1.1/0.1")
    assert directory.workers_of(NODE) == ["spot-1.1/0.1"]


def test_worker_is_expected_to_fetch_new_weights_for_as_long_as_the_last_time():
    directory, worker = introduced("spot-1.1/0.1"), WorkerId("spot-1.1/0.1")
    first, second = WeightsId(Version(1)), WeightsId(Version(2))
    directory.weights[first] = PublishedSet("digest", "", announced_at=10.0)
    assert directory.fetching_s(worker, first, now=11.0) == 0.0
    directory.holds(worker, first, now=14.0)
    directory.weights[second] = PublishedSet("digest", "", announced_at=50.0)
    assert directory.fetching_s(worker, second, now=51.0) == 3.0
    assert directory.fetching_s(worker, second, now=60.0) == 0.0
    assert directory.fetching_s(worker, first, now=51.0) == 0.0


def test_fetch_of_a_worker_that_joined_after_the_announcement_counts_from_its_hello():
    directory, worker = Directory(), WorkerId("spot-1.1/0.1")
    directory.introduce(worker, KnownWorker(node=NODE, trains=False, came_at=90.0))
    directory.weights[WeightsId(Version(1))] = PublishedSet("digest", "", announced_at=10.0)
    directory.holds(worker, WeightsId(Version(1)), now=95.0)
    directory.weights[WeightsId(Version(2))] = PublishedSet("digest", "", announced_at=100.0)
    assert directory.fetching_s(worker, WeightsId(Version(2)), now=100.0) == 5.0
