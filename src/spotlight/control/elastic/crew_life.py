"""One crew from its token to its end, and the members that are blamed when it waits in vain.

Blame goes to the first of these sets that is not empty, among the silent members: followers that another member
reported as the one it waited for; followers without a recent sign of life; the leader, if it has none either; all
silent followers; the leader. The others may only hang because of these and get another grace: the end of a process
closes its sockets, which frees them. A live leader comes last, because the rows in flight are in its engine
(tests/unit/test_regroup_deadlines.py).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from spotlight.core.crew_messages import Forward, GroupToken, Prepared
from spotlight.core.types import WorkerId


class CrewState(StrEnum):
    PREPARING = "preparing"
    """Members have received Prepare; no group exists."""
    CONNECTING = "connecting"
    SERVING = "serving"
    DRAINING = "draining"
    """The leader leaves at a step boundary, then the followers do."""


@dataclass(slots=True)
class Running:
    """The forward in progress."""

    forward: Forward
    began: float
    done: set[WorkerId] = field(default_factory=set)


@dataclass(slots=True)
class Crew:
    """A token and its members, the leader first; the state moves only forward, by the machine that owns it."""

    token: GroupToken
    members: tuple[WorkerId, ...]
    began: float
    """Time of the loss or the decision that led to it."""
    reason: str
    state: CrewState = CrewState.PREPARING
    deadline: float = inf
    """Deadline of the current wait; infinite without one."""
    waits_since: float = 0.0
    replies: dict[WorkerId, Prepared] = field(default_factory=dict)
    formed: set[WorkerId] = field(default_factory=set)
    left: set[WorkerId] = field(default_factory=set)
    """Members that confirmed that nothing of it runs there any more."""
    has_store: bool = False
    running: Running | None = None
    forwards: int = 0
    early: Forward | None = None
    """The leader's first forward, if it arrived before all members had formed."""

    @property
    def leader(self) -> WorkerId:
        return self.members[0]

    @property
    def followers(self) -> tuple[WorkerId, ...]:
        return self.members[1:]

    @property
    def has_group(self) -> bool:
        return self.state is not CrewState.PREPARING

    def silent(self) -> list[WorkerId]:
        """Members that the current state waits for."""
        match self.state:
            case CrewState.PREPARING:
                replied: Collection[WorkerId] = self.replies
            case CrewState.CONNECTING:
                replied = self.formed
            case CrewState.DRAINING if self.running is None:
                if self.leader not in self.left:
                    return [self.leader]
                replied = self.left
            case _:
                replied = self.running.done if self.running is not None else self.members
        return [member for member in self.members if member not in replied]

    def wait(self, now: float, deadline: float) -> None:
        self.waits_since = now
        self.deadline = deadline

    def rest(self) -> None:
        self.deadline = inf


def suspects(
    silent: Collection[WorkerId],
    leader: WorkerId,
    waited_for: Collection[WorkerId],
    lifeless: Collection[WorkerId],
) -> list[WorkerId]:
    """Silent members to blame, in the order of the module docstring, sorted by id."""
    followers = sorted(worker for worker in silent if worker != leader)
    for group in (
        [worker for worker in followers if worker in waited_for],
        [worker for worker in followers if worker in lifeless],
        [leader] if leader in silent and leader in lifeless else [],
        followers,
    ):
        if group:
            return group
    return sorted(silent)


def disagreement(members: tuple[WorkerId, ...], replies: Mapping[WorkerId, Prepared]) -> tuple[str, WorkerId] | None:
    """Why these cannot be one crew, and the member that differs: members and digests of weights must agree."""
    leader = replies[members[0]]
    held = dict(leader.holds)
    for member in members:
        reply = replies[member]
        if reply.members != members:
            return f"{member} received the members {', '.join(reply.members)}", member
        member_holds = dict(reply.holds)
        for weights in leader.needs:
            if weights not in member_holds:
                return f"{member} does not hold {weights}, which {members[0]} has samples of in flight", member
        for weights, digest in member_holds.items():
            if held.get(weights, digest) != digest:
                return f"{member} holds {weights} as {digest}, {members[0]} as {held[weights]}", member
    return None
