"""Breakups: crews that ended early, with the members that still have to confirm or still need their next order.

A breakup is explained when its cause is known: a member is gone or has a notice. An error alone does not explain it,
because a death shows as an error at its neighbours before it shows as a death. So members of an unexplained breakup
join no new crew until a member is found gone, or until all have confirmed and there was no death; only then are they
distrusted (tests/unit/test_regroup_faults.py).
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf

from spotlight.control.elastic.crew_life import suspects
from spotlight.core.crew_messages import GroupToken
from spotlight.core.types import WorkerId

ORDER_S = 0.05
"""Seconds that survivors wait for the wish that replies to a replan: deciding takes well under a millisecond."""


@dataclass(slots=True)
class Breakup:
    """A crew that has ended."""

    token: GroupToken
    members: tuple[WorkerId, ...]
    since: float
    by: float
    """When silent members are killed; infinite where no group existed, as then no member can hang in it."""
    waiting: set[WorkerId]
    """Members that have not confirmed that nothing of this token runs there."""
    unordered: set[WorkerId]
    """Members that have not received their next order."""
    explained: bool
    blamed: set[WorkerId] = field(default_factory=set)
    """Members that other members reported to have waited for."""

    @property
    def orders_due(self) -> float:
        return self.since + ORDER_S if self.unordered else inf


class Breakups:
    """All breakups of a node; each ends when every member has confirmed or is gone, and has its next order."""

    def __init__(self) -> None:
        self._open: dict[GroupToken, Breakup] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, breakup: Breakup) -> None:
        self._open[breakup.token] = breakup
        self._tidy()

    def keep_apart(self, worker: WorkerId) -> bool:
        """Whether the worker must not join a new crew yet."""
        return any(not each.explained and worker in each.members for each in self._open.values())

    def left(self, worker: WorkerId, token: GroupToken, waited_for: WorkerId | None) -> None:
        """Record that the worker dropped the group."""
        breakup = self._open.get(token)
        if breakup is not None:
            breakup.waiting.discard(worker)
            if waited_for is not None:
                breakup.blamed.add(waited_for)
            self._tidy()

    def lost(self, worker: WorkerId) -> None:
        """Record that the worker is gone, which explains its breakups."""
        for breakup in self._open.values():
            if worker in breakup.members:
                breakup.explained = True
                breakup.waiting.discard(worker)
                breakup.unordered.discard(worker)
        self._tidy()

    def ordered(self, worker: WorkerId) -> None:
        """Record that the worker received an order to prepare for another crew."""
        for breakup in self._open.values():
            breakup.unordered.discard(worker)
        self._tidy()

    def superseded(self, worker: WorkerId, token: GroupToken) -> None:
        """Record that the worker is prepared for this token, so it has left all earlier ones."""
        for breakup in self._open.values():
            if breakup.token < token:
                breakup.waiting.discard(worker)
        self._tidy()

    def renew_order(self, worker: WorkerId, by: float) -> None:
        """Request another order, with time to follow it: the one that was to end an old crew came to nothing."""
        for breakup in self._open.values():
            if worker in breakup.waiting:
                breakup.unordered.add(worker)
                breakup.by = max(breakup.by, by)

    def inexplicable(self) -> list[Breakup]:
        """Unexplained breakups whose members have all confirmed and are alive; they count as explained from now on."""
        found = [each for _, each in sorted(self._open.items()) if not each.explained and not each.waiting]
        for breakup in found:
            breakup.explained = True
        self._tidy()
        return found

    def take_orders(self, now: float | None) -> list[tuple[WorkerId, GroupToken]]:
        """Workers to send Disband, with the token: of all explained breakups, or of those due at `now`."""
        orders: list[tuple[WorkerId, GroupToken]] = []
        for token, breakup in sorted(self._open.items()):
            if breakup.explained if now is None else breakup.orders_due <= now:
                orders += [(worker, token) for worker in sorted(breakup.unordered)]
                breakup.unordered.clear()
        self._tidy()
        return orders

    def overdue(
        self, now: float, grace_s: float, patience_s: float, lifeless: Collection[WorkerId]
    ) -> list[tuple[WorkerId, str]]:
        """Workers to kill and why; the others get another grace, as they may only hang because of these.

        A worker with signs of life may be loading, encoding or waiting out its exchange, and has `patience_s`.
        """
        doomed: list[tuple[WorkerId, str]] = []
        for token, breakup in sorted(self._open.items()):
            if breakup.by <= now:
                why = f"did not leave crew {token} within {now - breakup.since:.3g} s of its end"
                patient = now - breakup.since < patience_s
                silent = {worker for worker in breakup.waiting if not patient or worker in lifeless}
                blamed = suspects(silent, breakup.members[0], breakup.blamed, lifeless)
                doomed += [(worker, why) for worker in blamed]
                breakup.by = now + grace_s
        return doomed

    def next_deadline(self) -> float:
        return min((min(each.by, each.orders_due) for each in self._open.values()), default=inf)

    def _tidy(self) -> None:
        for token in sorted(self._open):
            breakup = self._open[token]
            if not breakup.waiting:
                breakup.by = inf
                if not breakup.unordered and breakup.explained:
                    del self._open[token]
