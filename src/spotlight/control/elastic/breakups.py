"""What is left of crews that ended before their time: who has not said so yet, and who waits for the next order.

A breakup is explained when it is known why: somebody is gone or has a notice. A mere error is no explanation, because
a death shows as an error at its neighbours before it shows as a death. So members of an unexplained one are in no new
crew until a member is found gone, or all have spoken and it was no death at all; only then are they distrusted
(tests/unit/test_regroup_faults.py).
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf

from spotlight.control.elastic.crew_life import suspects
from spotlight.core.crew_messages import GroupToken
from spotlight.core.types import WorkerId

ORDER_S = 0.05
"""How long survivors hold still for the wish that answers a replan: deciding takes well under a millisecond."""


@dataclass(slots=True)
class Breakup:
    """A crew that is no more."""

    token: GroupToken
    members: tuple[WorkerId, ...]
    since: float
    by: float
    """When who is still silent is killed; infinite where no group existed, as then nobody can hang in it."""
    waiting: set[WorkerId]
    """Who has not said that nothing of this token runs there."""
    unordered: set[WorkerId]
    """Who does not know yet what comes next."""
    explained: bool
    blamed: set[WorkerId] = field(default_factory=set)
    """Whom the others say they waited for."""

    @property
    def orders_due(self) -> float:
        return self.since + ORDER_S if self.unordered else inf


class Breakups:
    """All of a node; each ends when everybody has spoken or is gone, and has been told what comes next."""

    def __init__(self) -> None:
        self._open: dict[GroupToken, Breakup] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, breakup: Breakup) -> None:
        self._open[breakup.token] = breakup
        self._tidy()

    def keep_apart(self, worker: WorkerId) -> bool:
        """Whether it must not be in a new crew yet."""
        return any(not each.explained and worker in each.members for each in self._open.values())

    def left(self, worker: WorkerId, token: GroupToken, waited_for: WorkerId | None) -> None:
        """It dropped the group."""
        breakup = self._open.get(token)
        if breakup is not None:
            breakup.waiting.discard(worker)
            if waited_for is not None:
                breakup.blamed.add(waited_for)
            self._tidy()

    def lost(self, worker: WorkerId) -> None:
        """It is gone, which explains what it was part of."""
        for breakup in self._open.values():
            if worker in breakup.members:
                breakup.explained = True
                breakup.waiting.discard(worker)
                breakup.unordered.discard(worker)
        self._tidy()

    def ordered(self, worker: WorkerId) -> None:
        """It was told to prepare for another crew."""
        for breakup in self._open.values():
            breakup.unordered.discard(worker)
        self._tidy()

    def superseded(self, worker: WorkerId, token: GroupToken) -> None:
        """It was prepared for this one, so it is out of all before."""
        for breakup in self._open.values():
            if breakup.token < token:
                breakup.waiting.discard(worker)
        self._tidy()

    def ask_again(self, worker: WorkerId, by: float) -> None:
        """The order that was to end an old crew for it came to nothing: it needs another one, and time to obey."""
        for breakup in self._open.values():
            if worker in breakup.waiting:
                breakup.unordered.add(worker)
                breakup.by = max(breakup.by, by)

    def inexplicable(self) -> list[Breakup]:
        """Where all have spoken and nobody is gone; explained from now on."""
        found = [each for _, each in sorted(self._open.items()) if not each.explained and not each.waiting]
        for breakup in found:
            breakup.explained = True
        self._tidy()
        return found

    def take_orders(self, now: float | None) -> list[tuple[WorkerId, GroupToken]]:
        """Who is to stand alone, of which token: of all explained ones, or of those that are due at this time."""
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
        """Whom to kill and why; the others get another grace, as they may only hang because of these.

        Who shows signs of life may be loading, encoding or waiting out its exchange, and is left alone for longer.
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
