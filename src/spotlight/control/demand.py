"""What each node is told to expect, so that its agent can choose crews: its share of the work that nobody holds.

Told only when it can change a layout: beyond one request per slot more is all the same, and a node of one slot has no
choice (tests/unit/test_demand.py).
"""

from collections.abc import Collection

from spotlight.control.directory import Directory
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.core.crews import Demand
from spotlight.core.types import NodeId
from spotlight.core.work import Work


class Demands:
    """Remembers what every node was told last."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        """Image tokens of one sample of this run."""
        self._told: dict[NodeId, Demand] = {}
        self._last: dict[int, Demand] = {}
        """What nodes of so many slots were to expect when all were last looked at."""

    def news(self, directory: Directory, scheduler: Scheduler) -> list[tuple[NodeId, Demand]]:
        """What has changed since the last time, by node."""
        slots = {node: hello.slots for node, hello in directory.nodes.items()}
        expected = self._expected(slots.values(), scheduler)
        if expected == self._last and self._told.keys() == slots.keys():
            return []
        self._last = expected
        before, self._told = self._told, {node: expected.get(count, Demand()) for node, count in slots.items()}
        return [(node, self._told[node]) for node in sorted(slots) if before.get(node, Demand()) != self._told[node]]

    def _expected(self, slots: Collection[int], scheduler: Scheduler) -> dict[int, Demand]:
        """By slots of a node: nodes of as many slots expect the same."""
        waiting = sum(scheduler.waiting(work) for work in Work)
        pressing = scheduler.unfinished(Work.EVALUATION) > 0
        everywhere = sum(slots)
        expected = {}
        for count in sorted(set(slots) - {1}):
            share = min(count, -(-waiting * count // everywhere))
            expected[count] = Demand(waiting=((self._tokens, share),) if share else (), pressing=pressing)
        return expected
