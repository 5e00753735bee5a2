"""The store of the reserved node, as a simulated node on another machine uses it: every call takes time."""

import asyncio
from collections.abc import Callable

from spotlight.core import messages as m
from spotlight.core.blobs import BlobRef
from spotlight.core.errors import Stopped
from spotlight.node.unloading import Appends, Fetched, NearStore


class SimFarStore:
    """`FlightStore` over simulated trips; parts of flights arrive in order, reads may overtake them."""

    def __init__(self, store: Appends, trip_s: Callable[[], float]) -> None:
        """`trip_s` draws the seconds of the next trip to the store and back."""
        self._near = NearStore(store)
        self._trip_s = trip_s
        self._loop = asyncio.get_running_loop()
        self._last = 0.0
        """Arrival of the newest part."""
        self.read_at = 0.0
        """End of the last read."""

    def needs_fetch(self, grant: m.Grant) -> bool:
        return True

    def append(self, data: bytes, done: Callable[[BlobRef | Stopped], None]) -> None:
        self._last = max(self._last, self._loop.time() + self._trip_s())
        self._loop.call_at(self._last, self._near.append, data, done)

    def fetch(self, grant: m.Grant, done: Callable[[Fetched], None]) -> None:
        ends_at = self._loop.time() + self._trip_s()
        self.read_at = max(self.read_at, ends_at)
        self._loop.call_at(ends_at, self._near.fetch, grant, done)
