"""A simulated worker's membership of a crew: the states and messages of `node.membership` over `SimRendezvous`."""

import asyncio
from collections.abc import Awaitable, Callable

from spotlight.core.crew_messages import (
    BROKEN_S,
    Broke,
    Disband,
    Disbanded,
    Form,
    Formed,
    Forward,
    ForwardDone,
    GroupToken,
    MemberState,
    Prepare,
    Prepared,
)
from spotlight.core.messages import AnyMessage
from spotlight.core.types import Size, WorkerId
from spotlight.core.work import WeightsId
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.rendezvous import Exchange, GroupBroken, SimRendezvous

CONNECT_S = 0.01
FORM_BOUND_S = 0.3
OPERATION_BOUND_S = 1.5
"""As in the real group: shorter than the agent's deadline of a step."""
ORDER_TIMEOUT_S = 12.0


class SimMembership:
    """At most one crew, that of the newest token."""

    def __init__(
        self,
        me: WorkerId,
        rendezvous: SimRendezvous,
        send: Callable[[AnyMessage], None],
        holds: Callable[[], dict[WeightsId, str]],
        needs: Callable[[], set[WeightsId]],
        crash_if_due: Callable[[CrashPoint], None],
        awake: Callable[[], Awaitable[object]],
    ) -> None:
        self._crash_if_due = crash_if_due
        """Raises Crashed if the worker dies at this point."""
        self._awake = awake
        """Waits while the process is frozen: a frozen one reaches no exchange and sends nothing."""
        self._me = me
        self._rendezvous = rendezvous
        self._send = send
        self._holds = holds
        self._needs = needs
        self._loop = asyncio.get_running_loop()
        self._token: GroupToken | None = None
        self._members: tuple[WorkerId, ...] = (me,)
        self._set_state(MemberState.ALONE)
        self._until = 0.0
        self._forwards = 0
        self.refused = 0
        """Number of orders refused because their token is not this worker's newest."""

    def _set_state(self, state: MemberState) -> None:
        """Derived values are stored, because every step of every worker reads them."""
        self._state = state
        self.is_alone = state is MemberState.ALONE
        self.degree = len(self._members) if state is MemberState.MEMBER else 1
        self.follows = not self.is_alone and self._members[0] != self._me

    def seconds_paused(self) -> float:
        """Seconds during which no step may begin."""
        if self.is_alone or self._state not in (MemberState.PREPARED, MemberState.BROKEN):
            return 0.0
        left = self._until - self._loop.time()
        if left <= 0:
            was_prepared, token = self._state is MemberState.PREPARED, self._token
            self._leave_crew()
            if was_prepared and token is not None:
                self._send(Broke(token=token, problem="no order came"))
        return max(0.0, left)

    async def apply(self, order: Prepare | Form | Disband | Forward, seconds: float) -> None:
        """Carry out an order; `seconds` is the duration of this worker's part of a forward."""
        if self._is_old(order.token) or (order.token != self._token and not isinstance(order, Prepare)):
            self.refused += 1
            return
        match order:
            case Prepare():
                self._prepare(order)
            case Form() if self._state is MemberState.PREPARED:
                await self._form(order)
            case Form():
                self._broke("not prepared")
            case Disband():
                self._crash_if_due(CrashPoint.DISBANDING)
                self._leave_crew()
                self._send(Disbanded(token=order.token))
            case Forward() if self._state is MemberState.MEMBER:
                await self._run_forward(order.number, seconds)

    async def lead(self, weights: WeightsId, is_exact: bool, rows: int, seconds: float) -> bool:
        """Run one forward on all members; False: the crew broke and nothing advanced."""
        assert self._token is not None
        await self._awake()
        number, self._forwards = self._forwards, self._forwards + 1
        self._send(
            Forward(
                token=self._token, number=number, weights=weights, digest=self._holds()[weights], is_exact=is_exact,
                rows=rows, tokens=48, channels=1, text_width=1, text_dimension=1, size=Size(32, 96),
            )
        )  # fmt: skip
        if not await self._run_forward(number, seconds):
            return False
        await self._awake()
        self._send(ForwardDone(token=self._token, number=number))
        return True

    def process_ended(self) -> None:
        """Close the process's sockets."""
        self._rendezvous.leave(self._me)

    def _is_old(self, token: GroupToken) -> bool:
        return self._token is not None and token < self._token

    async def _run_forward(self, number: int, seconds: float) -> bool:
        try:
            await self._exchange(number, Exchange.INPUTS, OPERATION_BOUND_S)
            self._crash_if_due(CrashPoint.IN_FORWARD)
            assert self._token is not None
            await self._rendezvous.compute(self._token, seconds)
            await self._exchange(number, Exchange.OUTPUT, max(CONNECT_S, OPERATION_BOUND_S - seconds))
        except GroupBroken as broken:
            await self._awake()
            self._broke(str(broken))
            return False
        return True

    async def _exchange(self, number: int, exchange: Exchange, bound_s: float) -> None:
        """A real forward has many exchanges, so the wait for a frozen member starts at the inputs."""
        assert self._token is not None
        await self._awake()
        await self._rendezvous.wait_at(self._token, self._me, self._members, number, exchange, bound_s)

    def _prepare(self, order: Prepare) -> None:
        self._rendezvous.leave(self._me)
        self._token, self._members, self._forwards = order.token, order.members, 0
        busy = order.members[0] != self._me and bool(self._needs())
        self._set_state(MemberState.ALONE if busy else MemberState.PREPARED)
        self._until = self._loop.time() + ORDER_TIMEOUT_S
        self._send(
            Prepared(
                token=order.token,
                members=order.members,
                holds=tuple(sorted(self._holds().items())),
                needs=tuple(sorted(self._needs())),
                problem="was to follow but has samples in flight" if busy else "",
            )
        )

    async def _form(self, order: Form) -> None:
        self._crash_if_due(CrashPoint.PREPARED)
        await asyncio.sleep(CONNECT_S)
        await self._awake()
        try:
            await self._rendezvous.connect(order.token, self._me, order.members, FORM_BOUND_S)
        except GroupBroken as broken:
            self._broke(str(broken))
            return
        await self._awake()
        self._set_state(MemberState.MEMBER)
        self._send(Formed(token=order.token))

    def _broke(self, problem: str) -> None:
        assert self._token is not None
        self._rendezvous.leave(self._me)
        self._set_state(MemberState.BROKEN)
        self._until = self._loop.time() + BROKEN_S
        self._send(Broke(token=self._token, problem=problem))

    def _leave_crew(self) -> None:
        self._rendezvous.leave(self._me)
        self._members = (self._me,)
        self._set_state(MemberState.ALONE)
