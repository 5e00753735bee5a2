"""What the controller knows of nodes, workers, prompts and weights; volatile, told anew after a restart."""

from dataclasses import dataclass, field

from spotlight.core import messages as m
from spotlight.core.types import NodeId, Prompt, PromptId, WorkerId
from spotlight.core.work import WeightsId


@dataclass(frozen=True)
class PublishedSet:
    """Weights that workers may be asked to use."""

    digest: str
    path: str
    announced_at: float = 0.0
    """Run seconds."""


@dataclass
class KnownWorker:
    """A worker that introduced itself."""

    node: NodeId
    trains: bool
    warned: bool = False
    holds: set[WeightsId] = field(default_factory=set)
    """Applied, and their digest read back."""
    came_at: float = 0.0
    fetch_s: float = 0.0
    """From the announcement of a set until it held it, the last time."""
    accounted_to: float = 0.0
    """Run seconds up to which it has told what it did."""


@dataclass
class Directory:
    """What the controller knows of nodes, workers, prompts and weights."""

    prompts: dict[PromptId, Prompt] = field(default_factory=dict)
    weights: dict[WeightsId, PublishedSet] = field(default_factory=dict)
    nodes: dict[NodeId, m.NodeHello] = field(default_factory=dict)
    """Changed by `node_came` and `node_went` alone."""
    changed_nodes: list[NodeId] = field(default_factory=list)
    """Those that came or went since `Demands`, which remembers something of all nodes, looked last."""
    workers: dict[WorkerId, KnownWorker] = field(default_factory=dict)
    """Changed by `introduce` and `forget` alone."""
    _by_node: dict[NodeId, dict[WorkerId, None]] = field(default_factory=dict)

    def node_came(self, hello: m.NodeHello) -> None:
        self.nodes[hello.node] = hello
        self.changed_nodes.append(hello.node)

    def node_went(self, node: NodeId) -> bool:
        """Whether it was known."""
        self.changed_nodes.append(node)
        return self.nodes.pop(node, None) is not None

    def introduce(self, worker: WorkerId, known: KnownWorker) -> None:
        self.forget(worker)
        self.workers[worker] = known
        self._by_node.setdefault(known.node, {})[worker] = None

    def forget(self, worker: WorkerId) -> KnownWorker | None:
        """What was known of it."""
        known = self.workers.pop(worker, None)
        if known is not None:
            neighbours = self._by_node[known.node]
            del neighbours[worker]
            if not neighbours:
                del self._by_node[known.node]
        return known

    def holds(self, worker: WorkerId, weights: WeightsId, now: float) -> None:
        """It has applied them, and their digest is the announced one."""
        known = self.workers[worker]
        if weights not in known.holds:
            known.holds.add(weights)
            known.fetch_s = now - max(known.came_at, self.weights[weights].announced_at)

    def fetching_s(self, worker: WorkerId, weights: WeightsId, now: float) -> float:
        """Until it will hold them, if it takes as long as the last time."""
        known, published = self.workers[worker], self.weights.get(weights)
        if published is None or weights in known.holds:
            return 0.0
        return max(0.0, max(known.came_at, published.announced_at) + known.fetch_s - now)

    def rolling(self) -> list[WorkerId]:
        """Workers without a training role."""
        return sorted(worker for worker, known in self.workers.items() if not known.trains)

    def training(self) -> list[WorkerId]:
        """Workers with a training role."""
        return sorted(worker for worker, known in self.workers.items() if known.trains)

    def workers_of(self, node: NodeId) -> list[WorkerId]:
        return sorted(self._by_node.get(node, ()))
