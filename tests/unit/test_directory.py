"""Who lives on which node, as the controller knows it."""

from spotlight.control.directory import Directory, KnownWorker
from spotlight.core.types import NodeId, WorkerId

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


def test_forgotten_worker_is_no_longer_of_its_node_and_forgetting_it_twice_tells_nothing():
    directory = introduced("spot-1.1/0.1", "spot-2.1/0.1")
    forgotten = directory.forget(WorkerId("spot-1.1/0.1"))
    assert forgotten is not None
    assert forgotten.node == NODE
    assert directory.workers_of(NODE) == []
    assert directory.workers_of(OTHER) == ["spot-2.1/0.1"]
    assert directory.forget(WorkerId("spot-1.1/0.1")) is None


def test_worker_that_greets_twice_is_there_once():
    directory = introduced("spot-1.1/0.1", "spot-1.1/0.1")
    assert directory.workers_of(NODE) == ["spot-1.1/0.1"]
