"""A simulated worker's side of a crew: exchanges over `SimRendezvous`, timers for forwards."""

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence

from spotlight.core.crew_messages import Form, Forward, ForwardDone
from spotlight.core.messages import AnyMessage
from spotlight.core.types import Size, WorkerId
from spotlight.core.work import WeightsId
from spotlight.node.membership import CrewProblem, Membership
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.rendezvous import Exchange, GroupBroken, SimRendezvous
from spotlight.sim.row import SimRow
from spotlight.sim.sim_engine import SimEngine, SimSets

CONNECT_S = 0.01
FORM_BOUND_S = 0.3
OPERATION_BOUND_S = 1.5
"""As in the real group: shorter than the agent's deadline of a step."""
ORDER_TIMEOUT_S = 12.0


class SimCrew:
    """What `Membership` reads, and the effects of its orders."""

    def __init__(
        self,
        me: WorkerId,
        rendezvous: SimRendezvous,
        send: Callable[[AnyMessage], None],
        engine: SimEngine,
        holds: SimSets,
        crash_if_due: Callable[[CrashPoint], None],
        awake: Callable[[], Awaitable[object]],
    ) -> None:
        """`crash_if_due` raises Crashed if the worker dies at this point; `awake` waits while the process is frozen,
        which then reaches no exchange and sends nothing."""
        self._me = me
        self._rendezvous = rendezvous
        self._send = send
        self._engine = engine
        self._holds = holds
        self._crash_if_due = crash_if_due
        self._awake = awake
        self._forwards = 0
        # A weak reference, so that a dead worker is freed without garbage collection.
        self.membership = Membership(me, weakref.proxy(self), send, ORDER_TIMEOUT_S, asyncio.get_running_loop().time)

    # -- the worker, as its membership sees it -------------------------------------------------------------------------

    def samples(self) -> int:
        return len(self._engine.live)

    def needs(self) -> list[WeightsId]:
        return sorted(self._engine.needs())

    def held(self) -> list[tuple[WeightsId, str]]:
        return self._holds.held()

    def leave(self) -> None:
        """Drop the group; a process that ends closes its sockets in the same way."""
        self._forwards = 0
        self._rendezvous.leave(self._me)

    # -- effects -------------------------------------------------------------------------------------------------------

    async def connect(self, order: Form) -> CrewProblem | None:
        self._crash_if_due(CrashPoint.PREPARED)
        await asyncio.sleep(CONNECT_S)
        await self._awake()
        try:
            await self._rendezvous.connect(order.token, self._me, order.members, FORM_BOUND_S)
        except GroupBroken as broken:
            return CrewProblem(str(broken))
        await self._awake()
        return None

    async def follow(self, forward: Forward, seconds: float) -> CrewProblem | None:
        """`seconds` is the duration of this worker's part."""
        return await self._run_forward(forward.number, seconds)

    async def lead(
        self, batch: Sequence[SimRow], image: tuple[Size, int], is_exact: bool, seconds: float
    ) -> CrewProblem | None:
        """Run one forward on all members; a problem: the crew broke and nothing advanced."""
        token = self.membership.token
        assert token is not None
        await self._awake()
        number, self._forwards = self._forwards, self._forwards + 1
        request, (size, tokens) = batch[0].request, image
        # No tensors follow, so channels and text dimension are not those of a model.
        self._send(
            Forward(
                token=token,
                number=number,
                weights=request.weights,
                digest=self._holds[request.weights],
                is_exact=is_exact,
                rows=len(batch),
                tokens=tokens,
                channels=1,
                text_width=max(len(row.granted.prompt.text) for row in batch),
                text_dimension=1,
                guidance=request.sample.sampling.guidance,
                guided=batch[0].passes > 1,
                size=size,
            )
        )
        problem = await self._run_forward(number, seconds)
        if problem is None:
            await self._awake()
            self._send(ForwardDone(token=token, number=number))
        return problem

    async def _run_forward(self, number: int, seconds: float) -> CrewProblem | None:
        token = self.membership.token
        assert token is not None
        try:
            await self._exchange(number, Exchange.INPUTS, OPERATION_BOUND_S)
            self._crash_if_due(CrashPoint.IN_FORWARD)
            await self._rendezvous.compute(token, seconds)
            await self._exchange(number, Exchange.OUTPUT, max(CONNECT_S, OPERATION_BOUND_S - seconds))
        except GroupBroken as broken:
            await self._awake()
            return CrewProblem(str(broken))
        return None

    async def _exchange(self, number: int, exchange: Exchange, bound_s: float) -> None:
        """A real forward has many exchanges, so the wait for a frozen member starts at the inputs."""
        membership = self.membership
        assert membership.token is not None
        await self._awake()
        await self._rendezvous.wait_at(membership.token, self._me, membership.members, number, exchange, bound_s)
