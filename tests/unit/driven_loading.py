"""A worker's loading of weights, driven as its process drives it."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from spotlight.compute.weights.resident import Resident
from spotlight.compute.weights.store import NodeStore
from spotlight.core.messages import AnyMessage
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId
from spotlight.node.loading_core import Applied, LoadingCore
from spotlight.node.neighbours import WeightCopies


class DrivenLoading:
    """The core, and the copies that carry its effects out."""

    def __init__(
        self,
        me: WorkerId,
        resident: Resident,
        store: NodeStore,
        send: Callable[[AnyMessage, bytes], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trained: Mapping[str, Tensor] = {}
        self._copies = WeightCopies(resident, store, lambda policy: self._trained)
        self.core = LoadingCore(me, self._copies, send, resident.copies_sets, clock)

    def apply(self, message: AnyMessage, blob: bytes = b"") -> None:
        self._drive(self.core.apply(message, blob))

    def expire(self) -> None:
        self._drive(self.core.expire())

    def published(self, weights: WeightsId, tensors: Mapping[str, Tensor]) -> None:
        self._trained = tensors
        self._drive(self.core.published(weights))

    def _drive(self, applied: Applied) -> None:
        completion: Any = None
        try:
            while True:
                completion = self._copies.perform(applied.send(completion))
        except StopIteration:
            return
