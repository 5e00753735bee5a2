"""One crew from its token to its end, and who is to blame when it waits in vain.

Blame, where somebody keeps the others waiting, goes to the first of these that is not empty, among those that have said
nothing: followers whom another member named as the one it waited for; followers that have shown no sign of life for a
while; the leader, if it has shown none either; all silent followers; the leader. The others, who may only hang because
of these, get another grace: the end of a process closes its sockets, which frees them. A leader that lives comes last,
because the rows in flight are in its engine (tests/unit/test_regroup_deadlines.py).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from spotlight.core.crew_messages import Forward, GroupToken, Prepared
from spotlight.core.types import WorkerId


class CrewState(StrEnum):
    PREPARING = "preparing"
    """Members are asked; no group exists."""
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
    """When the loss or the decision was that it answers."""
    reason: str
    state: CrewState = CrewState.PREPARING
    deadline: float = inf
    """End of what the state waits for; infinite where it waits for nothing."""
    waits_since: float = 0.0
    answers: dict[WorkerId, Prepared] = field(default_factory=dict)
    formed: set[WorkerId] = field(default_factory=set)
    left: set[WorkerId] = field(default_factory=set)
    """Who said that nothing of it runs there any more."""
    has_store: bool = False
    running: Running | None = None
    forwards: int = 0
    early: Forward | None = None
    """The leader's first, said before the agent knew that all have formed."""

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
        """Whom the state waits for."""
        match self.state:
            case CrewState.PREPARING:
                said: Collection[WorkerId] = self.answers
            case CrewState.CONNECTING:
                said = self.formed
            case CrewState.DRAINING if self.running is None:
                if self.leader not in self.left:
                    return [self.leader]
                said = self.left
            case _:
                said = self.running.done if self.running is not None else self.members
        return [member for member in self.members if member not in said]

    def wait(self, now: float, deadline: float) -> None:
        self.waits_since = now
        self.deadline = deadline

    def rest(self) -> None:
        self.deadline = inf


def suspects(
    silent: Collection[WorkerId],
    leader: WorkerId,
    named: Collection[WorkerId],
    lifeless: Collection[WorkerId],
) -> list[WorkerId]:
    """Whom to blame among the silent, as the module says; in order of their ids."""
    followers = sorted(worker for worker in silent if worker != leader)
    for circle in (
        [worker for worker in followers if worker in named],
        [worker for worker in followers if worker in lifeless],
        [leader] if leader in silent and leader in lifeless else [],
        followers,
    ):
        if circle:
            return circle
    return sorted(silent)


def disagreement(members: tuple[WorkerId, ...], answers: Mapping[WorkerId, Prepared]) -> tuple[str, WorkerId] | None:
    """Why these cannot be one crew, and who differs: members and the digests of what they hold must agree."""
    leader = answers[members[0]]
    held = dict(leader.holds)
    for member in members:
        answer = answers[member]
        if answer.members != members:
            return f"{member} understood the members {', '.join(answer.members)}", member
        theirs = dict(answer.holds)
        for weights in leader.needs:
            if weights not in theirs:
                return f"{member} does not hold {weights}, which {members[0]} has samples of in flight", member
        for weights, digest in theirs.items():
            if held.get(weights, digest) != digest:
                return f"{member} holds {weights} as {digest}, {members[0]} as {held[weights]}", member
    return None
