"""The dispatcher where no storm blows: what makes it give up, and what it tells people."""

import pytest

from spotlight.control.dispatch import TROUBLES_ALLOWED, Dispatcher
from spotlight.control.ledger import Ledger
from spotlight.control.scheduler import Scheduler
from spotlight.core import messages as m
from spotlight.core.events import SCHEMA
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Request, SlotClass


class NoPayloads:
    def keep(self, request: Request, blob: bytes) -> tuple[str, str] | None:
        return None


def dispatcher_with(slot_class: SlotClass) -> tuple[Dispatcher, NodeId]:
    ledger = Ledger()
    dispatcher = Dispatcher(ledger, Scheduler(ledger), NoPayloads(), lambda event: None, lambda at: at, commit_every=1)
    node = NodeId(f"{slot_class.value}-1.1")
    dispatcher.node_joined(m.NodeHello(schema=SCHEMA, code="", node=node, slot_class=slot_class, slots=1))
    return dispatcher, node


@pytest.mark.parametrize("slot_class", list(SlotClass))
def test_nodes_that_say_again_and_again_that_they_cannot_work_end_the_run_with_their_reason(slot_class):
    dispatcher, node = dispatcher_with(slot_class)
    for life in range(TROUBLES_ALLOWED[slot_class]):
        assert dispatcher.failure is None
        # Before its Hello, as a worker that cannot load its model does.
        worker = WorkerId(f"{node}/0.{life + 1}")
        failed = m.Failed(problem="the weights file is truncated", fatal=True)
        dispatcher.handle(node, m.Envelope(worker, failed), b"", now=float(life))
    assert "the weights file is truncated" in str(dispatcher.failure)


def test_trouble_of_a_node_is_kept_for_people():
    dispatcher, node = dispatcher_with(SlotClass.SPOT)
    dispatcher.handle(node, m.Envelope(None, m.Failed(problem="no room in shared memory")), b"", now=0.0)
    assert list(dispatcher.problems) == [f"{node}: no room in shared memory"]
    assert dispatcher.failure is None
