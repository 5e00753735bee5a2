"""The world outside of the dispatcher: messages to send, and the store of the bytes that messages refer to."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from spotlight.core import messages as m
from spotlight.core.blobs import BlobRef
from spotlight.core.types import NodeId, WorkerId


class Payloads(Protocol):
    """The store of the bytes that messages refer to."""

    def release(self, refs: Sequence[BlobRef]) -> None:
        """These bytes are no longer needed."""

    def writer_gone(self, writer: str, needed: Callable[[], Mapping[str, int]]) -> None:
        """The node or worker stores nothing more; `needed` counts the parts of flights that are, by file."""


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A message to send to a worker, or to a node's agent."""

    node: NodeId
    worker: WorkerId | None
    message: m.AnyMessage
