"""What each node is told to expect, so that its agent can choose crews: its share of the work that nobody holds.

Told only when it can change a layout: beyond one request per slot more is all the same, and a node of one slot has no
choice (tests/unit/test_demand.py).
"""

from collections import Counter

from spotlight.control.directory import Directory
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.core.crew_messages import Demand
from spotlight.core.types import NodeId
from spotlight.core.work import Work

NOTHING = Demand()


class Demands:
    """Remembers what every node was told last."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        """Image tokens of one sample of this run."""
        self._told: dict[NodeId, Demand] = {}
        self._slots: dict[NodeId, int] = {}
        """Of each node that was there at the last look; a node's slots never change."""
        self._nodes_of: Counter[int] = Counter()
        """How many of these have so many slots."""
        self._everywhere = 0
        """All of these slots."""
        self._sizes: tuple[int, ...] = ()
        """Numbers of slots that leave a choice."""
        self._expected: dict[int, Demand] = {}
        """What nodes of so many slots were last told to expect."""

    def news(self, directory: Directory, scheduler: Scheduler) -> list[tuple[NodeId, Demand]]:
        """What has changed since the last time, by node."""
        came = self._look(directory) if directory.changed_nodes else []
        expected = self._shares(scheduler) if self._sizes else {}
        # Where nothing else is expected than before, only those who came can lack a word.
        concerned = came if expected == self._expected else list(self._slots)
        self._expected = expected
        news: list[tuple[NodeId, Demand]] = []
        for node in sorted(concerned):
            demand = expected.get(self._slots[node], NOTHING)
            if self._told.get(node, NOTHING) != demand:
                self._told[node] = demand
                news.append((node, demand))
        return news

    def _look(self, directory: Directory) -> list[NodeId]:
        """Who is there now; returns those who were not."""
        changed = sorted(set(directory.changed_nodes))
        directory.changed_nodes.clear()
        came = [node for node in changed if node in directory.nodes and node not in self._slots]
        for gone in changed:
            if gone not in directory.nodes and gone in self._slots:
                self._count(self._slots.pop(gone), -1)
                self._told.pop(gone, None)
        for node in came:
            self._slots[node] = directory.nodes[node].slots
            self._count(self._slots[node], 1)
        self._sizes = tuple(sorted(count for count, nodes in self._nodes_of.items() if nodes and count > 1))
        return came

    def _count(self, slots: int, nodes: int) -> None:
        self._nodes_of[slots] += nodes
        self._everywhere += slots * nodes

    def _shares(self, scheduler: Scheduler) -> dict[int, Demand]:
        """By slots of a node: those with as many expect the same."""
        waiting = scheduler.all_waiting
        pressing = scheduler.unfinished(Work.EVALUATION) > 0
        shares = {count: min(count, -(-waiting * count // self._everywhere)) for count in self._sizes}
        return {
            count: Demand(waiting=((self._tokens, share),) if share else (), pressing=pressing)
            for count, share in shares.items()
        }
