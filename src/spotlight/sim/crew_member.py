"""A simulated worker's side of a crew: exchanges over `SimRendezvous`, timers for forwards."""

import asyncio
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

from spotlight.control.elastic.config import ElasticConfig
from spotlight.core.crew_messages import Form, Forward, ForwardDone
from spotlight.core.types import Size, WorkerId
from spotlight.core.work import WeightsId
from spotlight.node.membership import CrewProblem, Membership
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.rendezvous import Exchange, GroupBroken, SimRendezvous
from spotlight.sim.row import SimRow
from spotlight.sim.sim_engine import SimEngine
from spotlight.sim.sim_loading import SimSets

FORM_TIMEOUT_S = 0.3
"""As in `compute/parallel/group.py`."""
LEAST_WAIT_S = 0.01
"""Wait for the output of members that computed for as long as this one."""


class Member(Protocol):
    """The worker."""

    id: WorkerId
    send: Callable[..., None]
    engine: SimEngine
    holds: SimSets

    def crash_if_due(self, point: CrashPoint) -> None:
        """Raise Crashed if the worker dies at this point."""

    async def awake(self) -> None:
        """Wait while the process is frozen: it then reaches no exchange and sends nothing."""


class SimCrew:
    """What `Membership` reads, and the effects of its orders."""

    def __init__(self, worker: Member, rendezvous: SimRendezvous, elastic: ElasticConfig) -> None:
        self._worker = worker
        self._me = worker.id
        self._rendezvous = rendezvous
        self._exchange_s = elastic.exchange_s
        self._first_exchange_s = elastic.first_exchange_s
        self._forwards = 0
        clock = asyncio.get_running_loop().time
        # A weak reference, so that a dead worker is freed without garbage collection.
        self.membership = Membership(worker.id, weakref.proxy(self), worker.send, elastic.patience_s, clock)

    # -- the worker, as its membership sees it -------------------------------------------------------------------------

    def samples(self) -> int:
        return len(self._worker.engine.live)

    def needs(self) -> list[WeightsId]:
        return sorted(self._worker.engine.needs())

    def held(self) -> list[tuple[WeightsId, str]]:
        return self._worker.holds.held()

    def leave(self) -> None:
        """Drop the group; a process that ends closes its sockets in the same way."""
        self._forwards = 0
        self._rendezvous.leave(self._me)

    # -- effects -------------------------------------------------------------------------------------------------------

    async def connect(self, order: Form, seconds: float) -> CrewProblem | None:
        """`seconds` is the time to connect to members that are there."""
        self._worker.crash_if_due(CrashPoint.PREPARED)
        await asyncio.sleep(seconds)
        await self._worker.awake()
        try:
            await self._rendezvous.connect(order.token, self._me, order.members, FORM_TIMEOUT_S)
        except GroupBroken as broken:
            return CrewProblem(str(broken))
        await self._worker.awake()
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
        await self._worker.awake()
        number, self._forwards = self._forwards, self._forwards + 1
        request, (size, tokens) = batch[0].request, image
        # No tensors follow, so channels and text dimension are not those of a model.
        self._worker.send(
            Forward(
                token=token,
                number=number,
                weights=request.weights,
                digest=self._worker.holds[request.weights],
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
            await self._worker.awake()
            self._worker.send(ForwardDone(token=token, number=number))
        return problem

    async def _run_forward(self, number: int, seconds: float) -> CrewProblem | None:
        token = self.membership.token
        assert token is not None
        limit_s = self._exchange_s if number else self._first_exchange_s
        try:
            await self._exchange(number, Exchange.INPUTS, limit_s)
            self._worker.crash_if_due(CrashPoint.IN_FORWARD)
            await self._rendezvous.compute(token, seconds)
            await self._exchange(number, Exchange.OUTPUT, max(LEAST_WAIT_S, limit_s - seconds))
        except GroupBroken as broken:
            await self._worker.awake()
            return CrewProblem(str(broken))
        return None

    async def _exchange(self, number: int, exchange: Exchange, bound_s: float) -> None:
        """A real forward has many exchanges, so the wait for a frozen member starts at the inputs."""
        membership = self.membership
        assert membership.token is not None
        await self._worker.awake()
        await self._rendezvous.wait_at(membership.token, self._me, membership.members, number, exchange, bound_s)
