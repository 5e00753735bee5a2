"""A dispatcher with one node, over a ledger without a journal."""

from collections.abc import Callable, Mapping, Sequence

from spotlight.control.dispatch import Dispatcher
from spotlight.control.ledger import Ledger
from spotlight.control.outside import Payloads
from spotlight.control.scheduler import Scheduler
from spotlight.core import messages as m
from spotlight.core.blobs import BlobRef
from spotlight.core.events import SCHEMA, AnyEvent
from spotlight.core.types import NodeId
from spotlight.core.work import SlotClass


class NoPayloads:
    def release(self, refs: Sequence[BlobRef]) -> None:
        pass

    def writer_gone(self, writer: str, needed: Callable[[], Mapping[str, int]]) -> None:
        pass


def dispatcher_with(
    slot_class: SlotClass, payloads: Payloads | None = None, emit: Callable[[AnyEvent], None] = lambda event: None
) -> tuple[Dispatcher, NodeId]:
    ledger, payloads = Ledger(), payloads or NoPayloads()
    dispatcher = Dispatcher(ledger, Scheduler(ledger), payloads, emit, lambda at: at, commit_every=1)
    node = NodeId(f"{slot_class.value}-1.1")
    dispatcher.node_joined(m.NodeHello(schema=SCHEMA, code="", node=node, slot_class=slot_class, slots=1))
    return dispatcher, node
