"""How an agent copies, relays and deletes weights, driven by hand."""

import msgspec
from agent_stories import FIRST, NEXT, SECOND, WEIGHTS, Node

from spotlight.core import messages as m
from spotlight.core.blobs import BlobSource
from spotlight.core.crew_messages import Adopt, CopyDamaged
from spotlight.core.errors import EnvironmentProblem, WeightsError
from spotlight.core.types import Version
from spotlight.core.work import WeightsId


def local(load: m.Load) -> m.Load:
    return m.Load(weights=load.weights, digest=load.digest, path=f"node/{load.weights.version}", keep=load.keep)


def test_announced_weights_are_copied_then_relayed_and_a_newborn_worker_receives_the_current_ones():
    node = Node(slots=2)
    first = node.load(1)
    assert node.inbox[FIRST] == []
    node.core.copied(first, local(first))
    assert node.inbox == {FIRST: [local(first)], SECOND: [local(first)]}
    second = node.load(2, worker=SECOND)
    node.core.copied(second, local(second))
    assert [len(node.inbox[worker]) for worker in (FIRST, SECOND)] == [1, 2]
    node.core.ended(FIRST, "exited", was_killed=True)
    node.advance(1.0)
    assert node.inbox[NEXT] == [local(second)]


def test_copies_are_made_one_after_the_other_and_a_set_that_is_no_longer_kept_is_skipped():
    node = Node()
    first, dropped, last = node.load(1), node.load(2, 1), node.load(3, 1)
    assert node.copying == [first]
    node.core.copied(first, local(first))
    assert node.copying == [first, last]
    assert not node.core.is_wanted(dropped.weights)
    node.core.copied(last, local(last))
    assert [load.weights.version for load in node.inbox[FIRST]] == [1, 3]


def test_file_of_a_dropped_set_is_deleted_when_its_workers_hold_a_later_one_or_are_gone():
    node = Node(slots=2)
    for version in (1, 2):
        load = node.load(version)
        node.core.copied(load, local(load))
    node.core.from_worker(FIRST, m.Held(weights=WeightsId(Version(2)), digest="d2"))
    assert node.deleted == []
    node.core.ended(SECOND, "exited")
    assert node.deleted == ["node/1"]


def test_rank_that_published_weights_adopts_them_before_their_file_is_copied():
    node = Node(slots=2)
    publish = m.Publish(weights=(WEIGHTS,))
    node.core.from_controller(FIRST, publish, b"")
    node.load(1)
    assert node.inbox == {FIRST: [publish, Adopt(weights=WEIGHTS, digest="d1", keep=())], SECOND: []}


def test_set_that_was_fetched_early_is_relayed_with_its_load_and_a_failed_early_copy_is_left_to_it():
    node = Node(slots=1)
    early = m.Load(weights=WEIGHTS, digest="d1", path="run/1")
    for copied in (local(early), WeightsError("no room")):
        node.core.from_controller(None, m.Fetch(load=early), b"")
        node.core.copied(node.copying.pop(), copied)
        assert node.inbox[FIRST] == []
        assert not node.reported(m.Failed)
    load = node.load(1)
    node.core.copied(load, local(load))
    assert node.inbox[FIRST] == [local(load)]


def test_damaged_copy_is_brought_again_from_the_run_s_machine_for_the_worker_that_found_it():
    node = Node(slots=2)
    first = msgspec.structs.replace(node.load(1), sources=(BlobSource("other:1", "f"),))
    local = msgspec.structs.replace(first, path="node/1")
    node.core.copied(node.copying.pop(), local)
    node.load(2, 1)
    later = msgspec.structs.replace(node.copying[0], path="node/2")
    node.core.copied(node.copying.pop(), later)
    node.core.from_worker(SECOND, CopyDamaged(weights=WeightsId(Version(1)), problem="it was altered."))
    assert node.spoiled == ["node/1"]
    assert node.deleted == []
    assert node.reported(m.Noted)[0].problem.endswith("it was altered.")
    (again,) = node.copying
    assert (again.path, again.sources, again.keep) == ("run/1", (), (WeightsId(Version(2)),))
    received = len(node.inbox[FIRST])
    node.core.copied(again, msgspec.structs.replace(again, path="node/1"))
    assert len(node.inbox[FIRST]) == received
    assert (node.inbox[SECOND][-1].path, node.inbox[SECOND][-1].weights) == ("node/1", WeightsId(Version(1)))


def test_damaged_copy_that_is_no_longer_wanted_is_not_brought_again():
    node = Node()
    for version in (1, 2):
        load = node.load(version)
        node.core.copied(node.copying.pop(), msgspec.structs.replace(load, path=f"node/{version}"))
    node.core.from_worker(FIRST, CopyDamaged(weights=WeightsId(Version(1)), problem="it was altered."))
    assert (node.copying, node.spoiled) == ([], [])


def test_node_that_cannot_copy_weights_reports_why_and_ends():
    node = Node()
    load = node.load(1)
    node.core.copied(load, EnvironmentProblem("the disk is full."))
    assert node.reported(m.Failed) == [m.Failed(problem="the disk is full.", exit_code=EnvironmentProblem.exit_code)]
    assert node.ends == ["the disk is full."]
    assert node.inbox[FIRST] == []
