"""Messages between a node's agent and the controller about the node itself; part of the union of all messages."""

from spotlight.core.blobs import BlobSource
from spotlight.core.message import Message
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind, SlotClass


class StoreFailed(Message, frozen=True, kw_only=True):
    """The store of the reserved node takes no more bytes: the run stops before anything is lost."""

    problem: str


class NodeHello(Message, frozen=True, kw_only=True):
    """A node's agent connects."""

    schema: int
    code: str
    node: NodeId
    slot_class: SlotClass
    slots: int
    zone: str = ""
    price: str = ""
    token: str = ""
    is_far: bool = False
    """Whether the run's folder is on another machine."""
    serves: BlobSource | None = None
    """Where other machines can read this node's copies of weights."""
    age_s: float = 0.0
    """Seconds since its machine started; 0 for a node that is simulated by processes."""
    received: int | None = None
    """Frames that it has received on this link before the connection broke; None: the link is new."""


class Gone(Message, frozen=True, kw_only=True):
    """A worker of this node died."""

    worker: WorkerId
    cause: str


class Warned(Message, frozen=True, kw_only=True):
    """The preemption notice of the whole node; it replaces the node's earlier one."""

    kind: NoticeKind
    seconds: float | None
    """Seconds until the loss; None: not announced."""
    withdrawn: bool = False
    """Whether no notice is in force any more; `kind` is that of the last one."""


class RewardAwaited(Message, frozen=True, kw_only=True):
    """`pictures` of this node wait for a reward that cannot score now; 0: none waits for it any more."""

    reward: str
    pictures: int
    problem: str = ""
    """Reason, if the number has grown."""


class Welcome(Message, frozen=True, kw_only=True):
    """The controller's reply to NodeHello: it has received this many frames on the link, and continues from there."""

    received: int


class Ping(Message, frozen=True, kw_only=True):
    """Acknowledges what has arrived, and shows that the sender is there; of either end of a link."""


class Rejected(Message, frozen=True, kw_only=True):
    """The controller refuses this node: it has another code version, or a wrong token."""

    reason: str
