"""A node whose workers reply at once, for tests of its crews."""

import functools
from asyncio import get_running_loop, sleep
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from regroup_stories import NODE

from spotlight.control.elastic.config import ElasticConfig
from spotlight.core import messages as m
from spotlight.core.crew_messages import (
    Crewed,
    Disband,
    Disbanded,
    Form,
    Formed,
    Forward,
    GroupToken,
    Prepare,
    Prepared,
)
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import Prompt, Sample, Sampling, Size, Version, WorkerId
from spotlight.core.work import Request, RequestId, SlotClass, WeightsId, Work
from spotlight.node.crews import NodeCrews
from spotlight.node.node_settings import NodeSettings
from spotlight.sim.virtual_loop import run_virtually

WEIGHTS, NEXT = WeightsId(Version(0)), WeightsId(Version(1))
TOKENS = 48
SPEED_UPS = [(TOKENS, degree, 0.8 * degree) for degree in (2, 3, 4)]
H100, A100 = "NVIDIA H100", "NVIDIA A100"


def forward(token: GroupToken, number: int) -> Forward:
    return Forward(
        token=token,
        number=number,
        weights=WEIGHTS,
        digest="d",
        rows=1,
        tokens=TOKENS,
        channels=1,
        text_width=1,
        text_dimension=1,
        size=Size(32, 96),
    )


def virtually(scenario: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    @functools.wraps(scenario)
    def run() -> None:
        run_virtually(scenario())

    del run.__wrapped__  # pytest must not see a coroutine
    return run


@dataclass
class CrewNode:
    """A node whose workers reply to each order at once, except the unresponsive ones."""

    hysteresis_s: float = 1.0
    mixed_gpus: str = "allow"
    config: ElasticConfig | None = None
    """Replaces the two settings above."""
    sent: list[tuple[WorkerId, m.AnyMessage]] = field(default_factory=list)
    reports: list[Crewed] = field(default_factory=list)
    killed: list[tuple[WorkerId, str]] = field(default_factory=list)
    stores: set[GroupToken] = field(default_factory=set)
    held: dict[WorkerId, dict[RequestId, m.Granted]] = field(default_factory=dict)
    unresponsive: set[WorkerId] = field(default_factory=set)

    def __post_init__(self) -> None:
        config = self.config or ElasticConfig.model_validate(
            {
                "speed_ups": SPEED_UPS,
                "measure": False,
                "hysteresis_s": self.hysteresis_s,
                "mixed_gpus": self.mixed_gpus,
            }
        )
        spec = NodeSpec(name="spot-1", slot_class=SlotClass.SPOT, slots=8)
        settings = NodeSettings(node=NODE, spec=spec, elastic=config, heads=12, token_pixels=64, group_store="/store")
        leases = lambda worker: self.held.get(worker, {})  # noqa: E731
        self.crews = NodeCrews(settings, self, self, leases, get_running_loop())

    # -- what the node does for its crews ------------------------------------------------------------------------------

    def send(self, worker: WorkerId, message: m.AnyMessage) -> None:
        self.sent.append((worker, message))
        if worker not in self.unresponsive:
            get_running_loop().call_soon(self._reply, worker, message)

    def kill_worker(self, worker: WorkerId, why: str) -> None:
        self.killed.append((worker, why))

    def report(self, crewed: Crewed) -> None:
        self.reports.append(crewed)

    def open(self, token: GroupToken) -> None:
        self.stores.add(token)

    def close(self, token: GroupToken) -> None:
        self.stores.discard(token)

    def _reply(self, worker: WorkerId, order: m.AnyMessage) -> None:
        match order:
            case Prepare():
                needs = (WEIGHTS,) if self.held.get(worker) else ()
                answer: m.AnyMessage = Prepared(
                    token=order.token, members=order.members, holds=((WEIGHTS, "d"),), needs=needs
                )
            case Form():
                answer = Formed(token=order.token)
            case Disband():
                answer = Disbanded(token=order.token)
            case _:
                return
        self.crews.receive(worker, answer)

    # -- verbs ---------------------------------------------------------------------------------------------------------

    async def join(self, *workers: WorkerId, kind: str = "", speed: float | None = None) -> None:
        """Each worker sends its Hello, holds the weights, and has a measured speed if one is given."""
        for worker in workers:
            hello = m.Hello(schema=1, code="", node=NODE, slot_class=SlotClass.SPOT, rows=1, pid=1, kind=kind)
            self.crews.receive(worker, hello)
            self.crews.receive(worker, m.Pull(free_rows=1, row_steps_per_s=speed))
            self.crews.receive(worker, m.Held(weights=WEIGHTS, digest="d"))
        await sleep(0)

    async def lease(self, worker: WorkerId) -> None:
        sample = Sample(
            prompt=Prompt(text="hello").id, seed=1, sampling=Sampling(steps=20, size=Size(32, 96)), version=Version(0)
        )
        request = Request(work=Work.ROLLOUT, iteration=0, group=0, sample=sample)
        granted = m.Granted(request=request, attempt=1, prompt=Prompt(text="hello"))
        self.held[worker] = {granted.request.id: granted}
        self.crews.changed()
        await self.settle()

    async def finish(self, worker: WorkerId) -> None:
        """Finish or hand back the worker's sample."""
        self.held.pop(worker)
        self.crews.changed()
        await self.settle()

    def load(self, *workers: WorkerId) -> None:
        """Report that these workers hold the next weights."""
        for worker in workers:
            self.crews.receive(worker, m.Held(weights=NEXT, digest="e"))

    async def settle(self) -> None:
        """Wait long enough for orders and replies, too short for any deadline."""
        await sleep(0.001)

    # -- reads ---------------------------------------------------------------------------------------------------------

    @property
    def now_in_crews(self) -> tuple[tuple[WorkerId, ...], ...]:
        return self.reports[-1].crews if self.reports else ()

    def token(self) -> GroupToken:
        return GroupToken(NODE, self.reports[-1].epoch)


async def crew_of(*workers: WorkerId, **options: Any) -> CrewNode:
    """A node whose first worker has a sample and whose other workers help it."""
    node = CrewNode(**options)
    await node.join(*workers)
    await sleep(node.hysteresis_s)
    await node.lease(workers[0])
    assert node.now_in_crews == (workers,)
    return node
