"""Messages by which machines join a run, and orders of the controller to the agents of such machines.

A machine sends `Join` as the only frame of a connection, and receives `Joined` or `JoinRefused`. Its agent then
connects with a link of its own, as every agent does.
"""

from spotlight.core.message import Message
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind, SlotClass


class Join(Message, frozen=True, kw_only=True):
    """A machine offers itself as a node, or reports the end of the node that it was."""

    schema: int
    code: str
    """Version of spotlight."""
    source: str
    """Digest of its source files (`core/source_digest.py`)."""
    token: str
    """The run's token."""
    name: str
    slot_class: SlotClass
    slots: int = 0
    """Slots of the node; 0: one per GPU in a run on GPUs, else as many as the run's own nodes have."""
    gpus: tuple[str, ...] = ()
    """Models of the machine's GPUs."""
    zone: str = ""
    from_ray: bool = False
    """Whether the run's Ray cluster has started the machine."""
    previous: str = ""
    """Token of the machine's last node, whose processes are gone; empty: there was none."""
    leaves: bool = False
    """The machine only reports the end of its last node; there is no reply."""


class Joined(Message, frozen=True, kw_only=True):
    """The machine is this node."""

    node: NodeId
    launch: bytes
    """JSON of a MachineLaunch."""


class JoinRefused(Message, frozen=True, kw_only=True):
    """The controller does not take the machine."""

    reason: str
    exit_code: int = 2
    """Exit code of the machine's command."""
    wait_s: float = 0.0
    """Seconds in which it is worth trying again; 0: it is refused for good."""


class KillOrder(Message, frozen=True, kw_only=True):
    """Kill this worker of the node."""

    worker: WorkerId


class NoticeOrder(Message, frozen=True, kw_only=True):
    """The node will go in `seconds`."""

    kind: NoticeKind
    seconds: float


class Leave(Message, frozen=True, kw_only=True):
    """End all processes of the node at once; the machine does not join again by itself."""

    reason: str
    exit_code: int = 0
    """Exit code of the machine's command."""
