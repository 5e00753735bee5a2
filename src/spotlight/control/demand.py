"""The demand of each node, from which its agent chooses crews: the node's share of the requests without a lease.

A demand is sent only if it can change a layout: more than one request per slot makes no difference, and a node of one
slot has no choice (tests/unit/test_demand.py).
"""

from collections import Counter

from spotlight.control.directory import Directory
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.core.crew_messages import Demand
from spotlight.core.types import NodeId
from spotlight.core.work import Work

NOTHING = Demand()


class Demands:
    """The last demand that was sent to each node."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        """Image tokens of one sample of this run."""
        self._sent: dict[NodeId, Demand] = {}
        self._slots: dict[NodeId, int] = {}
        """Slots of each known node; a node's slots never change."""
        self._nodes_by_slots: Counter[int] = Counter()
        """Number of known nodes by their number of slots."""
        self._total_slots = 0
        """Slots of all known nodes."""
        self._sizes: tuple[int, ...] = ()
        """Numbers of slots above 1 among the known nodes."""
        self._demand_by_slots: dict[int, Demand] = {}
        """Last demand of a node, by its number of slots."""

    def changes(self, directory: Directory, scheduler: Scheduler) -> list[tuple[NodeId, Demand]]:
        """Return the demands that changed since the last call, by node."""
        joined = self._update_nodes(directory) if directory.changed_nodes else []
        demand_by_slots = self._shares(scheduler) if self._sizes else {}
        # With equal demands, only nodes that joined may lack theirs.
        candidates = joined if demand_by_slots == self._demand_by_slots else list(self._slots)
        self._demand_by_slots = demand_by_slots
        changes: list[tuple[NodeId, Demand]] = []
        for node in sorted(candidates):
            demand = demand_by_slots.get(self._slots[node], NOTHING)
            if self._sent.get(node, NOTHING) != demand:
                self._sent[node] = demand
                changes.append((node, demand))
        return changes

    def _update_nodes(self, directory: Directory) -> list[NodeId]:
        """Update the known nodes from the directory; return the new ones."""
        changed = sorted(set(directory.changed_nodes))
        directory.changed_nodes.clear()
        joined = [node for node in changed if node in directory.nodes and node not in self._slots]
        for gone in changed:
            if gone not in directory.nodes and gone in self._slots:
                self._count(self._slots.pop(gone), -1)
                self._sent.pop(gone, None)
        for node in joined:
            self._slots[node] = directory.nodes[node].slots
            self._count(self._slots[node], 1)
        self._sizes = tuple(sorted(count for count, nodes in self._nodes_by_slots.items() if nodes and count > 1))
        return joined

    def _count(self, slots: int, nodes: int) -> None:
        self._nodes_by_slots[slots] += nodes
        self._total_slots += slots * nodes

    def _shares(self, scheduler: Scheduler) -> dict[int, Demand]:
        """Demand of a node by its number of slots."""
        waiting = scheduler.all_waiting
        pressing = scheduler.unfinished(Work.EVALUATION) > 0
        shares = {count: min(count, -(-waiting * count // self._total_slots)) for count in self._sizes}
        return {
            count: Demand(waiting=((self._tokens, share),) if share else (), pressing=pressing)
            for count, share in shares.items()
        }
