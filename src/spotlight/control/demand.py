"""What each node is told to expect, so that its agent can choose crews: its share of the work that nobody holds.

Told only when it can change a layout: beyond one request per slot more is all the same, and a node of one slot has no
choice (tests/unit/test_demand.py).
"""

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

    def news(self, directory: Directory, scheduler: Scheduler) -> list[tuple[NodeId, Demand]]:
        """What has changed since the last time, by node."""
        self._told = {node: demand for node, demand in self._told.items() if node in directory.nodes}
        slots = {node: hello.slots for node, hello in directory.nodes.items()}
        if max(slots.values(), default=1) < 2:
            return []
        waiting = sum(scheduler.waiting(work) for work in Work)
        everywhere = sum(slots.values())
        news = []
        for node in sorted(node for node, count in slots.items() if count > 1):
            share = min(slots[node], -(-waiting * slots[node] // everywhere))
            demand = Demand(
                waiting=((self._tokens, share),) if share else (),
                pressing=scheduler.unfinished(Work.EVALUATION) > 0,
            )
            if self._told.get(node, Demand()) != demand:
                self._told[node] = demand
                news.append((node, demand))
        return news
