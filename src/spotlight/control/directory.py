"""The controller's registry of nodes, workers, prompts and weights; volatile, rebuilt from messages after a restart."""

from dataclasses import dataclass, field

from spotlight.core import messages as m
from spotlight.core.blobs import BlobSource
from spotlight.core.types import NodeId, Prompt, PromptId, WorkerId
from spotlight.core.work import Policy, WeightsId


@dataclass(frozen=True)
class PublishedSet:
    """Published weights that requests may need."""

    digest: str
    path: str
    announced_at: float = 0.0
    """Time of the publication."""


@dataclass
class KnownWorker:
    """A worker that has sent its Hello."""

    node: NodeId
    trains: bool
    warned: bool = False
    holds: set[WeightsId] = field(default_factory=set)
    """Applied weights whose digest the worker has read back."""
    came_at: float = 0.0
    fetch_s: float = 0.0
    """Seconds from the last publication of the behaviour policy until the worker held it."""
    accounted_to: float = 0.0
    """End of the worker's recorded spans, in run seconds."""


@dataclass
class Directory:
    """Registry of nodes, workers, prompts and weights."""

    prompts: dict[PromptId, Prompt] = field(default_factory=dict)
    weights: dict[WeightsId, PublishedSet] = field(default_factory=dict)
    nodes: dict[NodeId, m.NodeHello] = field(default_factory=dict)
    """Nodes by id; only `add_node` and `remove_node` change it."""
    changed_nodes: list[NodeId] = field(default_factory=list)
    """Nodes that were added or removed since `Demands` last cleared this list."""
    workers: dict[WorkerId, KnownWorker] = field(default_factory=dict)
    """Workers by id; only `introduce` and `forget` change it."""
    kernels: str | None = None
    """Kernels of the run's workers, which the first one reports."""
    _by_node: dict[NodeId, dict[WorkerId, None]] = field(default_factory=dict)

    def add_node(self, hello: m.NodeHello) -> None:
        self.nodes[hello.node] = hello
        self.changed_nodes.append(hello.node)

    def remove_node(self, node: NodeId) -> bool:
        """Remove a node; return whether it was known."""
        self.changed_nodes.append(node)
        return self.nodes.pop(node, None) is not None

    def sources_for(self, node: NodeId) -> tuple[BlobSource, ...]:
        """The node that this one reads weights from, before the run's own server: its predecessor in a chain.

        The chain passes through all nodes of other machines, zone by zone, so the run's server sends each file once,
        and a zone receives it once. Where the predecessor is gone or slow, the run's server sends the rest.
        """
        here = self.nodes[node]
        if not here.is_far:
            return ()
        chain = sorted(
            (hello for hello in self.nodes.values() if hello.serves is not None),
            key=lambda hello: (hello.zone, hello.node),
        )
        before = [hello.serves for hello in chain if (hello.zone, hello.node) < (here.zone, node)]
        return tuple(source for source in before[-1:] if source is not None)

    def load_for(
        self, node: NodeId, weights: WeightsId, published: PublishedSet, keep: tuple[WeightsId, ...] = ()
    ) -> m.Load:
        """The order with which this node fetches a set and its workers apply it."""
        sources = self.sources_for(node)
        return m.Load(weights=weights, digest=published.digest, path=published.path, keep=keep, sources=sources)

    def loads_for(self, node: NodeId) -> list[m.Load]:
        """The orders for all published sets."""
        keep = tuple(sorted(self.weights))
        return [self.load_for(node, weights, published, keep) for weights, published in sorted(self.weights.items())]

    def introduce(self, worker: WorkerId, known: KnownWorker) -> None:
        self.forget(worker)
        self.workers[worker] = known
        self._by_node.setdefault(known.node, {})[worker] = None

    def mismatch(self, hello: m.Hello) -> str | None:
        """The problem of a worker that computes with other kernels than the workers before it."""
        if self.kernels is None or hello.kernels == self.kernels:
            self.kernels = hello.kernels
            return None
        found, wanted = (kernels or "not compiled" for kernels in (hello.kernels, self.kernels))
        return (
            f"a worker of {hello.node} computes with other kernels ({found}) than this run ({wanted}), so rollouts and "
            "training would disagree; set model.compile and model.attention instead of leaving them to auto."
        )

    def forget(self, worker: WorkerId) -> KnownWorker | None:
        """Remove a worker and return its entry, if any."""
        known = self.workers.pop(worker, None)
        if known is not None:
            neighbours = self._by_node[known.node]
            del neighbours[worker]
            if not neighbours:
                del self._by_node[known.node]
        return known

    def holds(self, worker: WorkerId, weights: WeightsId, now: float) -> None:
        """Record that the worker has applied these weights, with the published digest."""
        known = self.workers[worker]
        if weights not in known.holds:
            known.holds.add(weights)
            # Averages are published next, and are often brought while the worker trains.
            if weights.policy is Policy.BEHAVIOUR:
                known.fetch_s = now - max(known.came_at, self.weights[weights].announced_at)

    def fetching_s(self, worker: WorkerId, weights: WeightsId, now: float) -> float:
        """Expected seconds until the worker holds these weights, from its last fetch time."""
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
