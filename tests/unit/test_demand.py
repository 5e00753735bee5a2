"""Expected demand per node: its share of the waiting requests, sent only when it can change a layout."""

import msgspec

from spotlight.control.demand import Demands
from spotlight.control.directory import Directory
from spotlight.control.ledger import Ledger
from spotlight.control.scheduler import Scheduler
from spotlight.core import messages as m
from spotlight.core.crew_messages import Demand
from spotlight.core.events import SCHEMA
from spotlight.core.messages import Pull
from spotlight.core.types import NodeId, PromptId, Sample, Sampling, Size, Version, WorkerId
from spotlight.core.work import Policy, Request, SlotClass, WeightsId, Work

TOKENS = 1024


class Waiting:
    """A queue of requests in front of nodes with several slots each."""

    def __init__(self, **slots: int) -> None:
        self.directory = Directory()
        for name, count in slots.items():
            node = NodeId(f"{name}.1")
            hello = m.NodeHello(schema=SCHEMA, code="", node=node, slot_class=SlotClass.SPOT, slots=count)
            self.directory.add_node(hello)
        self.ledger = Ledger()
        self.scheduler = Scheduler(self.ledger)
        self.demands = Demands(TOKENS)
        self._seeds = iter(range(1000))

    def add(self, count: int, work: Work = Work.ROLLOUT) -> None:
        sampling = Sampling(steps=10, size=Size(512, 512))
        requests = [
            Request(
                work=work,
                iteration=0,
                group=0,
                sample=Sample(prompt=PromptId("p"), seed=next(self._seeds), sampling=sampling, version=Version(0)),
            )
            for _ in range(count)
        ]
        self.ledger.issue(requests)
        self.scheduler.add(requests)

    def changes(self) -> dict[NodeId, Demand]:
        return dict(self.demands.changes(self.directory, self.scheduler))


def test_node_of_one_slot_has_no_choice_and_is_sent_nothing():
    queue = Waiting(a=1)
    queue.add(5)
    assert queue.changes() == {}


def test_nodes_are_sent_their_share_by_slots_and_never_more_than_one_request_per_slot():
    queue = Waiting(a=2, b=4)
    queue.add(3)
    assert queue.changes() == {
        NodeId("a.1"): Demand(waiting=((TOKENS, 1),)),
        NodeId("b.1"): Demand(waiting=((TOKENS, 2),)),
    }
    queue.add(500)
    assert queue.changes() == {
        NodeId("a.1"): Demand(waiting=((TOKENS, 2),)),
        NodeId("b.1"): Demand(waiting=((TOKENS, 4),)),
    }


def test_demand_that_cannot_change_a_layout_is_not_sent_again():
    queue = Waiting(a=4)
    assert queue.changes() == {}
    queue.add(50)
    queue.changes()
    queue.add(50)
    assert queue.changes() == {}
    queue.scheduler.cancel(Work.ROLLOUT)
    assert queue.changes() == {NodeId("a.1"): Demand()}


def test_waiting_evaluation_is_pressing():
    queue = Waiting(a=2)
    queue.add(1, Work.EVALUATION)
    assert queue.changes()[NodeId("a.1")].pressing


def test_evaluation_is_pressing_until_its_last_sample_is_done():
    queue = Waiting(a=2)
    queue.add(1, Work.EVALUATION)
    queue.changes()
    worker, weights = WorkerId("a.1/0.1"), WeightsId(Version(0), Policy.AVERAGE)
    queue.scheduler.join(worker, SlotClass.SPOT, rows=1, now=0.0)
    queue.scheduler.holds(worker, [weights])
    queue.scheduler.pull(worker, Pull(free_rows=1), now=0.0)
    assert queue.scheduler.assign(now=0.0)
    assert queue.changes() == {NodeId("a.1"): Demand(pressing=True)}, "nothing waits, but the one sample is waited for"


def test_node_that_came_back_is_sent_its_demand_again():
    queue = Waiting(a=2)
    queue.add(5)
    before = queue.changes()
    hello = queue.directory.nodes[NodeId("a.1")]
    assert queue.directory.remove_node(hello.node)
    assert queue.changes() == {}
    queue.directory.add_node(hello)
    assert queue.changes() == before


def test_new_node_is_sent_its_demand_and_the_others_are_not_sent_theirs_again():
    queue = Waiting(a=2)
    queue.add(50)
    assert set(queue.changes()) == {NodeId("a.1")}
    queue.directory.add_node(msgspec.structs.replace(queue.directory.nodes[NodeId("a.1")], node=NodeId("b.1")))
    assert queue.changes() == {NodeId("b.1"): Demand(waiting=((TOKENS, 2),))}
