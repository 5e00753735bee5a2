"""Messages in order, though the bytes of one are still on their way to or from a store.

Invariant (tests/unit/test_in_order.py): items are delivered once, in the order in which they were added or reserved.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class PendingItem(Generic[Item]):
    """The place of one item, which is known when it is filled."""

    __slots__ = ("is_filled", "item")

    def __init__(self) -> None:
        self.is_filled = False
        self.item: Item | None = None


class InOrder(Generic[Item]):
    """Delivers an item at once, unless an earlier one is still awaited."""

    def __init__(self, deliver: Callable[[Item], None]) -> None:
        self._deliver = deliver
        self._places: deque[PendingItem[Item]] = deque()

    @property
    def is_empty(self) -> bool:
        return not self._places

    def add(self, item: Item) -> None:
        """Deliver the item after all earlier ones."""
        self.fill(self.reserve(), item)

    def reserve(self) -> PendingItem[Item]:
        """A place for an item that is not known yet; later items wait for it."""
        place: PendingItem[Item] = PendingItem()
        self._places.append(place)
        return place

    def fill(self, place: PendingItem[Item], item: Item | None) -> None:
        """Fill a place, for None with nothing, and deliver what no longer waits."""
        place.item, place.is_filled = item, True
        while self._places and self._places[0].is_filled:
            found = self._places.popleft().item
            if found is not None:
                self._deliver(found)
