"""A worker's place in a crew; owned by the model's thread, which obeys orders between two steps.

    ALONE --Prepare--> PREPARED --Form, connected--> MEMBER --Disband--> ALONE
      ^                    |  `--Form failed----.       `--a collective failed--.
      |                    |                    v                               |
      |                    |                 BROKEN <---------------------------'
      `--Disband, patience ends--'-------------'  `--Prepare--> PREPARED (of the next token)

Consumes Prepare, Form, Disband and Forward; says Prepared, Formed, Broke and Disbanded; every Form and every Disband is
answered. PREPARED and BROKEN hold still: no step begins until the agent has said what next, or the patience for it is
over, and then the worker goes on alone. Invariants (tests/unit/test_membership.py): what carries an older token than
the newest one seen is refused; a group is dropped before its end is told; a follower never holds samples of its own.
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
"""Token, members, rank, the store's path."""


class Membership:
    """One at most; the newest token that was heard of is the only one that counts."""

    def __init__(
        self,
        me: WorkerId,
        shared: SharedAdapter,
        engine: Engine,
        resident: Resident,
        tell: Callable[[AnyMessage], None],
        patience_s: float,
        connect: Connect = form,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience_s = patience_s
        """How long it stays prepared: longer than the agent waits for the others' step boundaries."""
        self._connect = connect
        self._me = me
        self._shared = shared
        self._engine = engine
        self._resident = resident
        self._tell = tell
        self._clock = clock
        self._standing = MemberState.ALONE
        self._token: GroupToken | None = None
        self._members: tuple[WorkerId, ...] = (me,)
        self._until = 0.0

    @property
    def degree(self) -> int:
        """Slots that a step of this worker takes."""
        return len(self._members) if self._standing is MemberState.MEMBER else 1

    @property
    def follows(self) -> bool:
        """Whether this worker is another's, or about to be: it takes no samples of its own then."""
        return self._standing is not MemberState.ALONE and self._members[0] != self._me

    def seconds_still(self) -> float:
        """How long no step may begin; 0 where nothing is waited for. Ends by itself."""
        if self._standing not in (MemberState.PREPARED, MemberState.BROKEN):
            return 0.0
        left = self._until - self._clock()
        if left <= 0:
            gave_up, token = self._standing is MemberState.PREPARED, self._token
            self._stand_alone()
            if gave_up and token is not None:
                self._tell(Broke(token=token, problem=f"{self._me} was prepared, and no order came"))
        return max(0.0, left)

    def obey(self, order: Prepare | Form | Disband | Forward) -> None:
        """One order of the agent; raises WeightsError or CrewBroken for nobody: what fails is told."""
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
        """A collective failed, or this worker cannot take part: the group is dropped, so that the others learn it."""
        token = self._token
        assert token is not None
        self._shared.bind(None)
        self._standing = MemberState.BROKEN
        self._until = self._clock() + BROKEN_S
        waited_for = error.waited_for if isinstance(error, CrewBroken) else None
        self._tell(Broke(token=token, problem=str(error), waited_for=waited_for))

    def _prepare(self, order: Prepare) -> None:
        """At a step boundary, because orders are obeyed there; it also ends whatever there was."""
        self._shared.bind(None)
        self._token, self._members = order.token, order.members
        problem = ""
        if self._me not in order.members:
            problem = f"{self._me} is not among the members"
        elif order.members[0] != self._me and self._engine.progress():
            problem = f"{self._me} was to follow but has {len(self._engine.progress())} samples in flight"
        self._standing = MemberState.ALONE if problem else MemberState.PREPARED
        self._until = self._clock() + self._patience_s
        self._tell(
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
            if self._standing is not MemberState.PREPARED or order.members != self._members:
                raise CrewBroken(f"{self._me} is not prepared for {order.token}; it is {self._standing.value}.")
            rank = order.members.index(self._me)
            self._shared.bind(self._connect(order.token, order.members, rank, order.store))
        except SpotlightError as error:
            self.broke(error)
            return
        self._standing = MemberState.MEMBER
        self._tell(Formed(token=order.token))

    def _disband(self, order: Disband) -> None:
        self._stand_alone()
        self._tell(Disbanded(token=order.token))

    def _follow(self, forward: Forward) -> None:
        if self._standing is not MemberState.MEMBER or not self.follows:
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
        self._standing = MemberState.ALONE
        self._members = (self._me,)
