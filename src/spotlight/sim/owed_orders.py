"""Checks that a worker has carried out, before its next step, the orders to give samples up that it has read.

The ledger refuses what a worker sends of such a sample, so nothing but time would be lost, and no other check sees it.
"""

from collections.abc import Iterable

from spotlight.core import messages as m
from spotlight.core.work import RequestId, Work
from spotlight.sim.crash_points import Broken
from spotlight.sim.row import SimRow


class OwedOrders:
    """Orders read since the last step."""

    def __init__(self) -> None:
        self.is_any = False
        """Whether there is one to check."""
        self._fenced: set[tuple[RequestId, int]] = set()
        self._recalled: set[RequestId] = set()
        self._discarded: set[Work] = set()

    def taken(self, message: m.AnyMessage) -> None:
        match message:
            case m.Fenced(request=request, attempt=attempt):
                self._fenced.add((request, attempt))
            case m.Recall(requests=requests):
                self._recalled.update(requests)
            case m.Discard(work=work):
                self._discarded.add(work)
            case m.Grant(leases=leases):
                # Granted anew after the order.
                self._recalled.difference_update(lease.request.id for lease in leases)
                self._discarded.difference_update(lease.request.work for lease in leases)
            case _:
                return
        self.is_any = bool(self._fenced or self._recalled or self._discarded)

    def check(self, live: Iterable[SimRow]) -> None:
        """Raise Broken if one of these samples takes the step; the next orders are checked at the next one."""
        for row in live:
            request, attempt = row.request.id, row.attempt
            if (request, attempt) in self._fenced or request in self._recalled or row.request.work in self._discarded:
                raise Broken(f"{request} attempt {attempt} takes a step though its worker has read that it must not")
        for orders in (self._fenced, self._recalled, self._discarded):
            orders.clear()
        self.is_any = False
