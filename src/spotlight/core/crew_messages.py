"""Messages between the agent and the workers of one node: crews (the workers of one SP group) and weight copies.

    agent  -> worker              Prepare, Form, Disband
    worker -> agent               Prepared, Formed, Broke, Disbanded
    leader -> agent -> followers  Forward (run by all members), ForwardDone (to the agent alone)
    newcomer -> agent -> holder   AskNeighbour; Offered returns the same way
    agent  -> training ranks      Adopt
    agent  -> controller          Crewed
    controller -> agent           Demand

Every crew message carries the crew's token; a receiver with a newer token for that worker refuses it. AskNeighbour,
Offered and Adopt are independent of crews, but stay within the node as well.
"""

from enum import StrEnum

import msgspec

from spotlight.core.message import Message
from spotlight.core.types import NodeId, Size, WorkerId
from spotlight.core.work import WeightsId

BROKEN_S = 3.0
"""Seconds that a worker waits for its agent after its group broke. The agent replies within milliseconds, unless it
kills a hanging member first."""


class MemberState(StrEnum):
    ALONE = "alone"
    PREPARED = "prepared"
    MEMBER = "member"
    BROKEN = "broken"


class GroupToken(msgspec.Struct, frozen=True, order=True):
    """Unique name of one group: a node's id is unique per incarnation, and only its agent counts epochs."""

    node: NodeId
    epoch: int

    def __str__(self) -> str:
        return f"{self.node}#{self.epoch}"


class Prepare(Message, frozen=True, kw_only=True):
    """Request to hold at the next step boundary and report weights. The leader is the first member."""

    token: GroupToken
    members: tuple[WorkerId, ...]


class Prepared(Message, frozen=True, kw_only=True):
    """Reply to `Prepare`, at a step boundary; the worker takes no step before `Form`, `Disband` or its timeout."""

    token: GroupToken
    members: tuple[WorkerId, ...]
    """Members as received in `Prepare`; must be equal in all replies."""
    holds: tuple[tuple[WeightsId, str], ...]
    needs: tuple[WeightsId, ...] = ()
    """Weights of the samples in flight on this worker; all members must hold the leader's."""
    problem: str = ""
    """Reason why the worker cannot join; empty if it can. After a problem it refuses the token."""


class Form(Message, frozen=True, kw_only=True):
    """Connect over the store at this path; a worker's rank is its index in `members`."""

    token: GroupToken
    members: tuple[WorkerId, ...]
    store: str


class Formed(Message, frozen=True, kw_only=True):
    """The group is connected and tested; the leader steps at the new degree from now on."""

    token: GroupToken


class Broke(Message, frozen=True, kw_only=True):
    """The worker dropped its group, while forming or in use; nothing of this token runs on it any more."""

    token: GroupToken
    problem: str
    waited_for: WorkerId | None = None
    """Member that the worker was waiting for, if known."""


class Disband(Message, frozen=True, kw_only=True):
    """Leave the group at the next step boundary and run alone; also ends a preparation."""

    token: GroupToken


class Disbanded(Message, frozen=True, kw_only=True):
    """The worker left the group at a step boundary; no step was lost."""

    token: GroupToken


class Forward(Message, frozen=True, kw_only=True):
    """Run one forward pass with the leader. Its tensors follow over the group, in these shapes."""

    token: GroupToken
    number: int
    """Index of this forward within the token, from 0."""
    weights: WeightsId
    digest: str
    is_exact: bool = True
    rows: int
    tokens: int
    channels: int
    text_width: int
    text_dimension: int
    pooled: int = 0
    """Width of the pooled text vector; 0 for none."""
    guidance: float = 1.0
    guided: bool = False
    """Whether an unconditional batch follows the conditional one."""
    size: Size


class ForwardDone(Message, frozen=True, kw_only=True):
    token: GroupToken
    number: int


class Crewed(Message, frozen=True, kw_only=True):
    """The node's crews from now on; workers that are not named run alone."""

    epoch: int
    crews: tuple[tuple[WorkerId, ...], ...]
    reason: str
    seconds: float = 0.0
    """Seconds from the loss or the decision until the new crew is ready."""


class Demand(Message, frozen=True, kw_only=True):
    """The node's share of the waiting requests, by image tokens."""

    waiting: tuple[tuple[int, int], ...] = ()
    """Pairs of (image tokens, number of requests without a lease)."""
    pressing: bool = False
    """True if latency counts more than throughput: a validation or a deadline waits for the last sample."""


class AskNeighbour(Message, frozen=True, kw_only=True):
    """Request handles of these weights from a worker of this node, on a device that the newcomer can read."""

    weights: WeightsId
    newcomer: WorkerId


class Offered(Message, frozen=True, kw_only=True):
    """Reply to `AskNeighbour`; blob: handles of the weights, empty if no worker holds them."""

    weights: WeightsId
    newcomer: WorkerId


class CopyDamaged(Message, frozen=True, kw_only=True):
    """The node's copy of these weights is not the announced set: the agent copies it again, from the run's machine."""

    weights: WeightsId
    problem: str


class Adopt(Message, frozen=True, kw_only=True):
    """The weights that this rank published are announced: apply them from its own memory, if they are still there.

    The corresponding Load follows in any case, when the file is in the node's store.
    """

    weights: WeightsId
    digest: str
    keep: tuple[WeightsId, ...] = ()
