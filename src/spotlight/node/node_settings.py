"""Settings of a node's agent, real or simulated."""

from dataclasses import dataclass
from math import inf

from spotlight import __version__
from spotlight.control.elastic.config import ElasticConfig
from spotlight.core import messages as m
from spotlight.core.blobs import BlobSource
from spotlight.core.events import SCHEMA
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """One incarnation of a node."""

    node: NodeId
    spec: NodeSpec
    elastic: ElasticConfig
    heads: int
    """Attention heads of the model: no crew is larger."""
    token_pixels: int
    """Pixels of a picture per token of the model."""
    is_far: bool = False
    """Whether the run's folder is on another machine."""
    age_s: float = 0.0
    """Seconds since its machine started."""
    serves: BlobSource | None = None
    """Where other machines can read this node's copies of weights."""
    token: str = ""
    """Proof that the controller's pool started this node."""
    group_store: str = ""
    """Path at which members of a crew find one another."""
    heartbeat_s: float = 0.5
    """Seconds between two Alive messages of a worker."""
    silence_s: float = inf
    """Seconds of silence after which a worker is killed as hung; infinite: never."""
    start_s: float = inf
    """Seconds until a worker's Hello, after which it is killed as hung."""
    drain_s: float = 20.0
    """Seconds for workers to hand back their samples and exit."""
    first_pause_s: float = 0.1
    """Pause before the next worker of a slot; doubles per failed start."""
    longest_pause_s: float = 10.0

    def hello(self) -> m.NodeHello:
        """The message with which the node connects."""
        spec = self.spec
        return m.NodeHello(
            schema=SCHEMA,
            code=__version__,
            node=self.node,
            slot_class=spec.slot_class,
            slots=spec.slots,
            zone=spec.zone,
            price=spec.price,
            token=self.token,
            is_far=self.is_far,
            serves=self.serves,
            age_s=self.age_s,
        )

    @property
    def can_share(self) -> bool:
        """Whether crews of two or more are possible."""
        return len(self.elastic.legal_degrees(self.heads, self.spec.slots)) > 1
