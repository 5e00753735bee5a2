"""What each node is told to expect, so that its agent can choose crews: its share of the work that nobody holds.

Told only when it can change a layout: beyond one request per slot more is all the same, and a node of one slot has no
choice (tests/unit/test_demand.py).
"""

from spotlight.control.directory import Directory
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.core.crews import Demand
from spotlight.core.types import NodeId
from spotlight.core.work import Work

NOTHING = Demand()


class Demands:
    """Remembers what every node was told last."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        """Image tokens of one sample of this run."""
        self._told: dict[NodeId, Demand] = {}
        self._nodes: list[NodeId] = []
        self._slots: list[int] = []
        """Of these nodes, when they were last looked at: a node's slots never change."""
        self._sizes: tuple[int, ...] = ()
        """Numbers of slots that leave a choice."""
        self._expected: dict[int, Demand] = {}
        """What nodes of so many slots were last told to expect."""

    def news(self, directory: Directory, scheduler: Scheduler) -> list[tuple[NodeId, Demand]]:
        """What has changed since the last time, by node."""
        nodes = list(directory.nodes)
        are_same = nodes == self._nodes
        if not are_same:
            self._nodes, self._slots = nodes, [directory.nodes[node].slots for node in nodes]
            self._sizes = tuple(sorted(set(self._slots) - {1}))
        expected = self._shares(scheduler) if self._sizes else {}
        if are_same and expected == self._expected:
            return []
        self._expected = expected
        before = self._told
        slots = zip(self._nodes, self._slots, strict=True)
        self._told = {node: expected.get(count, NOTHING) for node, count in slots}
        return [(node, self._told[node]) for node in sorted(nodes) if before.get(node, NOTHING) != self._told[node]]

    def _shares(self, scheduler: Scheduler) -> dict[int, Demand]:
        """By slots of a node: those with as many expect the same."""
        waiting = sum([scheduler.waiting(work) for work in Work])
        pressing = scheduler.unfinished(Work.EVALUATION) > 0
        everywhere = sum(self._slots)
        shares = {count: min(count, -(-waiting * count // everywhere)) for count in self._sizes}
        return {
            count: Demand(waiting=((self._tokens, share),) if share else (), pressing=pressing)
            for count, share in shares.items()
        }
