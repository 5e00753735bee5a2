"""A worker's membership in a crew; owned by the model's thread, which applies orders between two steps.

    ALONE --Prepare--> PREPARED --Form, connected--> MEMBER --Disband--> ALONE
      ^                    |  `--Form failed----.       `--a collective failed--.
      |                    |                    v                               |
      |                    |                 BROKEN <---------------------------'
      `--Disband, timeout--'--------------------'  `--Prepare--> PREPARED (of the next token)

Consumes Prepare, Form, Disband and Forward; sends Prepared, Formed, Broke and Disbanded, one reply to every Form and
every Disband. In PREPARED and BROKEN no step begins until the agent's next order or a timeout, after which the worker
continues alone. Invariants (tests/unit/test_membership.py): orders with an older token than the newest one seen are
refused; a group is dropped before its end is reported; a follower never holds samples of its own.
"""

import time
from collections.abc import Callable

from spotlight.compute.parallel.crew_adapter import SharedAdapter, StaleForward
from spotlight.compute.parallel.group import CrewBroken, CrewGroup, form
from spotlight.compute.rollout.engine import Engine
from spotlight.compute.weights.resident import Resident
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
from spotlight.core.errors import SpotlightError
from spotlight.core.messages import AnyMessage
from spotlight.core.types import WorkerId

Connect = Callable[[GroupToken, tuple[WorkerId, ...], int, str], CrewGroup | None]
"""Connects a group, given its token, members, own rank and the path of the group store."""


class Membership:
    """At most one group; only the newest token received is valid."""

    def __init__(
        self,
        me: WorkerId,
        shared: SharedAdapter,
        engine: Engine,
        resident: Resident,
        send: Callable[[AnyMessage], None],
        patience_s: float,
        connect: Connect = form,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience_s = patience_s
        """Timeout in PREPARED: longer than the agent waits for the other members' step boundaries."""
        self._connect = connect
        self._me = me
        self._shared = shared
        self._engine = engine
        self._resident = resident
        self._send = send
        self._clock = clock
        self._state = MemberState.ALONE
        self._token: GroupToken | None = None
        self._members: tuple[WorkerId, ...] = (me,)
        self._until = 0.0

    @property
    def degree(self) -> int:
        """Number of slots that a step of this worker uses."""
        return len(self._members) if self._state is MemberState.MEMBER else 1

    @property
    def follows(self) -> bool:
        """Whether this worker follows a leader, or is about to: it takes no samples of its own then."""
        return self._state is not MemberState.ALONE and self._members[0] != self._me

    def seconds_paused(self) -> float:
        """Seconds until the worker may step without an order; 0 if it may now. A timeout ends the wait here."""
        if self._state not in (MemberState.PREPARED, MemberState.BROKEN):
            return 0.0
        left = self._until - self._clock()
        if left <= 0:
            gave_up, token = self._state is MemberState.PREPARED, self._token
            self._stand_alone()
            if gave_up and token is not None:
                self._send(Broke(token=token, problem=f"{self._me} was prepared, but received no order in time"))
        return max(0.0, left)

    def apply(self, order: Prepare | Form | Disband | Forward) -> None:
        """Apply one order of the agent; failures are reported as Broke, not raised."""
        if self._token is not None and order.token < self._token:
            return
        match order:
            case Prepare():
                self._prepare(order)
            case _ if order.token != self._token:
                return
            case Form():
                self._form(order)
            case Disband():
                self._disband(order)
            case Forward():
                self._follow(order)

    def broke(self, error: SpotlightError) -> None:
        """Drop the group and report Broke: a collective failed, or this worker cannot join."""
        token = self._token
        assert token is not None
        self._shared.bind(None)
        self._state = MemberState.BROKEN
        self._until = self._clock() + BROKEN_S
        waited_for = error.waited_for if isinstance(error, CrewBroken) else None
        self._send(Broke(token=token, problem=str(error), waited_for=waited_for))

    def _prepare(self, order: Prepare) -> None:
        """End the current group and reply; orders are applied at step boundaries, so no step is interrupted."""
        self._shared.bind(None)
        self._token, self._members = order.token, order.members
        problem = ""
        if self._me not in order.members:
            problem = f"{self._me} is not among the members"
        elif order.members[0] != self._me and self._engine.progress():
            problem = f"{self._me} was to follow but has {len(self._engine.progress())} samples in flight"
        self._state = MemberState.ALONE if problem else MemberState.PREPARED
        self._until = self._clock() + self._patience_s
        self._send(
            Prepared(
                token=order.token,
                members=order.members,
                holds=self._resident.held(),
                needs=self._engine.weights,
                problem=problem,
            )
        )

    def _form(self, order: Form) -> None:
        try:
            if self._state is not MemberState.PREPARED or order.members != self._members:
                raise CrewBroken(f"{self._me} is not prepared for {order.token}; it is {self._state.value}.")
            rank = order.members.index(self._me)
            self._shared.bind(self._connect(order.token, order.members, rank, order.store))
        except SpotlightError as error:
            self.broke(error)
            return
        self._state = MemberState.MEMBER
        self._send(Formed(token=order.token))

    def _disband(self, order: Disband) -> None:
        self._stand_alone()
        self._send(Disbanded(token=order.token))

    def _follow(self, forward: Forward) -> None:
        if self._state is not MemberState.MEMBER or not self.follows:
            return
        try:
            with self._resident.use(forward.weights, forward.is_exact):
                self._shared.follow(forward, self._resident.digest_of(forward.weights))
        except StaleForward:
            return
        except SpotlightError as error:
            self.broke(error)

    def _stand_alone(self) -> None:
        self._shared.bind(None)
        self._state = MemberState.ALONE
        self._members = (self._me,)
