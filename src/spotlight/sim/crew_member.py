"""A simulated worker's place in a crew: the states and words of `runtime.membership`, with rooms for groups."""

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
from spotlight.sim.moments import Moment
from spotlight.sim.rooms import Exchange, RoomBroken, Rooms

CONNECT_S = 0.01
FORM_BOUND_S = 0.3
OPERATION_BOUND_S = 1.5
"""As of the real group: shorter than the agent's deadline of a step."""
PATIENCE_S = 12.0


class SimMembership:
    """One at most, of the newest token."""

    def __init__(
        self,
        me: WorkerId,
        rooms: Rooms,
        say: Callable[[AnyMessage], None],
        holds: Callable[[], dict[WeightsId, str]],
        needs: Callable[[], set[WeightsId]],
        at: Callable[[Moment], None],
        awake: Callable[[], Awaitable[object]],
    ) -> None:
        self._at = at
        """Dies there, if somebody strikes."""
        self._awake = awake
        """Passes when the process runs: a frozen one comes to no exchange and says nothing."""
        self._me = me
        self._rooms = rooms
        self._say = say
        self._holds = holds
        self._needs = needs
        self._loop = asyncio.get_running_loop()
        self._token: GroupToken | None = None
        self._members: tuple[WorkerId, ...] = (me,)
        self._stand(MemberState.ALONE)
        self._until = 0.0
        self._forwards = 0
        self.refused = 0
        """Orders of a token that is not this worker's newest, so far."""

    def _stand(self, standing: MemberState) -> None:
        """Among the present members; what follows from it is kept, as it is asked for at every step of every worker."""
        self._standing = standing
        self.is_alone = standing is MemberState.ALONE
        self.degree = len(self._members) if standing is MemberState.MEMBER else 1
        self.follows = not self.is_alone and self._members[0] != self._me

    def still_s(self) -> float:
        """How long no step may begin."""
        if self._standing not in (MemberState.PREPARED, MemberState.BROKEN):
            return 0.0
        left = self._until - self._loop.time()
        if left <= 0:
            gave_up, token = self._standing is MemberState.PREPARED, self._token
            self._stand_alone()
            if gave_up and token is not None:
                self._say(Broke(token=token, problem="no order came"))
        return max(0.0, left)

    async def obey(self, order: Prepare | Form | Disband | Forward, seconds: float) -> None:
        """`seconds` is what this worker's part of a forward takes."""
        if self._is_old(order.token) or (order.token != self._token and not isinstance(order, Prepare)):
            self.refused += 1
            return
        match order:
            case Prepare():
                self._prepare(order)
            case Form() if self._standing is MemberState.PREPARED:
                await self._form(order)
            case Form():
                self._broke("not prepared")
            case Disband():
                self._at(Moment.DISBANDING)
                self._stand_alone()
                self._say(Disbanded(token=order.token))
            case Forward() if self._standing is MemberState.MEMBER:
                await self._together(order.number, seconds)

    async def lead(self, weights: WeightsId, is_exact: bool, rows: int, seconds: float) -> bool:
        """One forward of all members; False: the crew broke, and nothing has advanced."""
        assert self._token is not None
        await self._awake()
        number, self._forwards = self._forwards, self._forwards + 1
        self._say(
            Forward(
                token=self._token, number=number, weights=weights, digest=self._holds()[weights], is_exact=is_exact,
                rows=rows, tokens=48, channels=1, text_width=1, text_dimension=1, size=Size(32, 96),
            )
        )  # fmt: skip
        if not await self._together(number, seconds):
            return False
        await self._awake()
        self._say(ForwardDone(token=self._token, number=number))
        return True

    def gone(self) -> None:
        """The process ended: its sockets close."""
        self._rooms.left(self._me)

    def _is_old(self, token: GroupToken) -> bool:
        return self._token is not None and token < self._token

    async def _together(self, number: int, seconds: float) -> bool:
        try:
            await self._meet(number, Exchange.INPUTS, OPERATION_BOUND_S)
            self._at(Moment.TOGETHER)
            assert self._token is not None
            await self._rooms.compute(self._token, seconds)
            await self._meet(number, Exchange.OUTPUT, max(CONNECT_S, OPERATION_BOUND_S - seconds))
        except RoomBroken as broken:
            await self._awake()
            self._broke(str(broken))
            return False
        return True

    async def _meet(self, number: int, exchange: Exchange, bound_s: float) -> None:
        """A real forward is full of exchanges, so who waits for a frozen member has waited since the inputs."""
        assert self._token is not None
        await self._awake()
        await self._rooms.together(self._token, self._me, self._members, number, exchange, bound_s)

    def _prepare(self, order: Prepare) -> None:
        self._rooms.left(self._me)
        self._token, self._members, self._forwards = order.token, order.members, 0
        busy = order.members[0] != self._me and bool(self._needs())
        self._stand(MemberState.ALONE if busy else MemberState.PREPARED)
        self._until = self._loop.time() + PATIENCE_S
        self._say(
            Prepared(
                token=order.token,
                members=order.members,
                holds=tuple(sorted(self._holds().items())),
                needs=tuple(sorted(self._needs())),
                problem="was to follow but has samples in flight" if busy else "",
            )
        )

    async def _form(self, order: Form) -> None:
        self._at(Moment.PREPARED)
        await asyncio.sleep(CONNECT_S)
        await self._awake()
        try:
            await self._rooms.connect(order.token, self._me, order.members, FORM_BOUND_S)
        except RoomBroken as broken:
            self._broke(str(broken))
            return
        await self._awake()
        self._stand(MemberState.MEMBER)
        self._say(Formed(token=order.token))

    def _broke(self, problem: str) -> None:
        assert self._token is not None
        self._rooms.left(self._me)
        self._stand(MemberState.BROKEN)
        self._until = self._loop.time() + BROKEN_S
        self._say(Broke(token=self._token, problem=problem))

    def _stand_alone(self) -> None:
        self._rooms.left(self._me)
        self._members = (self._me,)
        self._stand(MemberState.ALONE)
