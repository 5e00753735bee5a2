"""A worker's membership in a crew, without sockets or tensors; part of its `WorkerCore`.

    ALONE --Prepare--> PREPARED --Form, connected--> MEMBER --Disband--> ALONE
      ^                    |  `--Form failed----.       `--a collective failed--.
      |                    |                    v                               |
      |                    |                 BROKEN <---------------------------'
      `--Disband, timeout--'--------------------'  `--Prepare--> PREPARED (of the next token)

Consumes Prepare, Form, Disband and Forward; sends Prepared, Formed, Broke and Disbanded, one reply to every Form and
every Disband. `apply` is a generator: the driver carries out Connect and Follow, and sends back a CrewProblem or None.
In PREPARED and BROKEN no step begins until the agent's next order or a timeout, after which the worker continues alone.
Invariants (tests/unit/test_membership.py, storms): orders with an older token than the newest one seen are refused; a
group is dropped before its end is reported; a follower never holds samples of its own.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from spotlight.core.crew_messages import (
    BROKEN_S,
    Broke,
    Disband,
    Disbanded,
    Form,
    Formed,
    Forward,
    GroupToken,
    MemberState,
    Prepare,
    Prepared,
)
from spotlight.core.messages import AnyMessage
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to the other members as this rank, within the driver's time limit."""

    order: Form
    rank: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Compute this worker's part of the leader's forward."""

    forward: Forward


@dataclass(frozen=True, slots=True)
class CrewProblem:
    """A group that could not be connected, or failed in an exchange."""

    text: str
    waited_for: WorkerId | None = None
    """The member whose part did not come, if that is known."""


CrewEffect: TypeAlias = Connect | Follow


class CrewWork(Protocol):
    """The worker's samples, weights and group."""

    def samples(self) -> int:
        """Number of samples in flight."""

    def needs(self) -> Sequence[WeightsId]:
        """Weights of the samples in flight."""

    def held(self) -> Sequence[tuple[WeightsId, str]]:
        """Weights that are loaded, with their digests."""

    def leave(self) -> None:
        """Drop the group, if there is one."""


class Membership:
    """At most one group; only the newest token received is valid."""

    def __init__(
        self,
        me: WorkerId,
        work: CrewWork,
        send: Callable[[AnyMessage], None],
        patience_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._patience_s = patience_s
        """Timeout in PREPARED: longer than the agent waits for the other members' step boundaries."""
        self._me = me
        self._work = work
        self._send = send
        self._clock = clock
        self._until = 0.0
        self.refused = 0
        """Number of orders refused because their token is not this worker's newest."""
        self.token: GroupToken | None = None
        self.members: tuple[WorkerId, ...] = (me,)
        self._enter(MemberState.ALONE)

    def _enter(self, state: MemberState) -> None:
        """Derived values are stored, because every step of every worker reads them."""
        self._state = state
        self.degree = len(self.members) if state is MemberState.MEMBER else 1
        """Number of slots that a step of this worker uses."""
        self.follows = state is not MemberState.ALONE and self.members[0] != self._me
        """Whether this worker follows a leader, or is about to: it takes no samples of its own then."""
        self._pauses = state in (MemberState.PREPARED, MemberState.BROKEN)

    def seconds_paused(self) -> float:
        """Seconds until the worker may step without an order; 0 if it may now. A timeout ends the wait here."""
        if not self._pauses:
            return 0.0
        left = self._until - self._clock()
        if left <= 0:
            gave_up, token = self._state is MemberState.PREPARED, self.token
            self._stand_alone()
            if gave_up and token is not None:
                self._send(Broke(token=token, problem=f"{self._me} was prepared, but received no order in time"))
        return max(0.0, left)

    def apply(self, order: Prepare | Form | Disband | Forward) -> Generator[CrewEffect, CrewProblem | None, None]:
        """Apply one order of the agent; failures are reported as Broke, not raised."""
        if self.token is not None and order.token < self.token:
            self.refused += 1
            return
        match order:
            case Prepare():
                self._prepare(order)
            case _ if order.token != self.token:
                self.refused += 1
            case Form():
                yield from self._form(order)
            case Disband():
                self._stand_alone()
                self._send(Disbanded(token=order.token))
            case Forward() if self._state is MemberState.MEMBER and self.follows:
                problem = yield Follow(order)
                if problem is not None:
                    self.broke(problem)

    def broke(self, problem: CrewProblem) -> None:
        """Drop the group and report Broke: a collective failed, or this worker cannot join."""
        assert self.token is not None
        self._work.leave()
        self._enter(MemberState.BROKEN)
        self._until = self._clock() + BROKEN_S
        self._send(Broke(token=self.token, problem=problem.text, waited_for=problem.waited_for))

    def _prepare(self, order: Prepare) -> None:
        """End the current group and reply; orders are applied at step boundaries, so no step is interrupted."""
        self._work.leave()
        self.token, self.members = order.token, order.members
        problem = ""
        if self._me not in order.members:
            problem = f"{self._me} is not among the members"
        elif order.members[0] != self._me and (samples := self._work.samples()):
            problem = f"{self._me} was to follow but has {samples} samples in flight"
        self._enter(MemberState.ALONE if problem else MemberState.PREPARED)
        self._until = self._clock() + self._patience_s
        self._send(
            Prepared(
                token=order.token,
                members=order.members,
                holds=tuple(self._work.held()),
                needs=tuple(self._work.needs()),
                problem=problem,
            )
        )

    def _form(self, order: Form) -> Generator[CrewEffect, CrewProblem | None, None]:
        if self._state is not MemberState.PREPARED or order.members != self.members:
            self.broke(CrewProblem(f"{self._me} is not prepared for {order.token}; it is {self._state.value}."))
            return
        problem = yield Connect(order, order.members.index(self._me))
        if problem is not None:
            self.broke(problem)
            return
        self._enter(MemberState.MEMBER)
        self._send(Formed(token=order.token))

    def _stand_alone(self) -> None:
        self._work.leave()
        self.members = (self._me,)
        self._enter(MemberState.ALONE)
