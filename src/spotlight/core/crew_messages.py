"""What agents and workers of one node say to form, use and leave crews; a crew is the workers of one SP group.

    agent  -> worker              Prepare, Form, Disband
    worker -> agent               Prepared, Formed, Broke, Disbanded
    leader -> agent -> followers  Forward (taken part in by all), ForwardDone (to the agent alone)
    newcomer -> agent -> holder   AskNeighbour, answered by Offered on the same way back
    agent  -> who wrote weights   Adopt
    agent  -> controller          Crewed
    controller -> agent           Demand

Every message of a crew carries its token; whoever knows a newer one for that worker refuses it. Weights of newcomers,
and of who wrote them, have nothing to do with crews, but stay within the node as well.
"""

from enum import StrEnum

import msgspec

from spotlight.core.message import Message
from spotlight.core.types import NodeId, Size, WorkerId
from spotlight.core.work import WeightsId

BROKEN_S = 3.0
"""How long a worker holds still for its agent after a break, which answers in milliseconds or kills who hangs first."""


class MemberState(StrEnum):
    ALONE = "alone"
    PREPARED = "prepared"
    MEMBER = "member"
    BROKEN = "broken"


class GroupToken(msgspec.Struct, frozen=True, order=True):
    """Names one group for ever: a node's id is unique per incarnation, and only its agent counts epochs."""

    node: NodeId
    epoch: int

    def __str__(self) -> str:
        return f"{self.node}#{self.epoch}"


class Prepare(Message, frozen=True, kw_only=True):
    """Asks whether this worker can be a member: alive, between steps, with which weights. The leader comes first."""

    token: GroupToken
    members: tuple[WorkerId, ...]


class Prepared(Message, frozen=True, kw_only=True):
    """The answer, at a step boundary; it takes no further step before `Form`, `Disband` or its own patience ends."""

    token: GroupToken
    members: tuple[WorkerId, ...]
    """As it understood them; must be the same for all."""
    holds: tuple[tuple[WeightsId, str], ...]
    needs: tuple[WeightsId, ...] = ()
    """Weights of the samples in flight here; all members must hold the leader's."""
    problem: str = ""
    """Why it cannot; then the token is dead for it."""


class Form(Message, frozen=True, kw_only=True):
    """All are prepared: connect, at this rank (the place among members), over the store at this path."""

    token: GroupToken
    members: tuple[WorkerId, ...]
    store: str


class Formed(Message, frozen=True, kw_only=True):
    """Connected, tried once, bound; the leader takes steps at the new degree from now on."""

    token: GroupToken


class Broke(Message, frozen=True, kw_only=True):
    """Dropped its group, in forming or in use; nothing of this token runs here any more."""

    token: GroupToken
    problem: str
    waited_for: WorkerId | None = None
    """Whom it was waiting for, where it knows."""


class Disband(Message, frozen=True, kw_only=True):
    """Leave the group at the next step boundary and stand alone; also ends a preparation."""

    token: GroupToken


class Disbanded(Message, frozen=True, kw_only=True):
    """Left it at a boundary; no step was lost."""

    token: GroupToken


class Forward(Message, frozen=True, kw_only=True):
    """The leader is about to run the model: take part. Tensors follow over the group, in these shapes."""

    token: GroupToken
    number: int
    """Counts the forwards of this token from 0."""
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
    """This node's crews, from now on; whoever is not named stands alone."""

    epoch: int
    crews: tuple[tuple[WorkerId, ...], ...]
    reason: str
    seconds: float = 0.0
    """From the loss or the decision to the new crew's readiness."""


class Demand(Message, frozen=True, kw_only=True):
    """What the controller expects this node to be asked for: its share of what waits, by image tokens."""

    waiting: tuple[tuple[int, int], ...] = ()
    """(image tokens, requests that nobody holds)."""
    pressing: bool = False
    """Latency counts more than throughput: a validation or a deadline waits for the last sample."""


class AskNeighbour(Message, frozen=True, kw_only=True):
    """Does somebody on this node hold these weights on a device that mine can read? The agent finds one."""

    weights: WeightsId
    newcomer: WorkerId


class Offered(Message, frozen=True, kw_only=True):
    """The answer; blob: handles of the weights, or none where nobody holds them."""

    weights: WeightsId
    newcomer: WorkerId


class Adopt(Message, frozen=True, kw_only=True):
    """You wrote these weights, and they are announced: take them up from your own memory, if they are there.

    The Load that it was made of follows when the file is in the node's store, whether this one did anything or not.
    """

    weights: WeightsId
    digest: str
    keep: tuple[WeightsId, ...] = ()
