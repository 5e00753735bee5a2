"""Trainers that roll out first, though something can be trained, because others still fetch the weights."""

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from dispatch_stories import dispatcher_with
from scheduled_world import CURRENT, DIGEST, request

from spotlight.control.directory import KnownWorker, PublishedSet
from spotlight.control.dispatch import Outgoing
from spotlight.control.pipeline.assist import Assist, Foreseen
from spotlight.control.pipeline.config import PipelineConfig
from spotlight.core import messages as m
from spotlight.core.types import Prompt, WorkerId
from spotlight.core.work import Request, RequestId, SlotClass
from spotlight.runtime.gang import Gang
from spotlight.runtime.hub import Hub
from spotlight.runtime.rollouts import Rollouts
from spotlight.runtime.sim.virtual_loop import VirtualClock, run_virtually
from spotlight.runtime.step import Schedule, Steps

SPOT, TRAINS = WorkerId("spot"), WorkerId("trains")
GROUPS, SIZE, FETCH_S, DRAW_S, TRAIN_S = 3, 2, 60.0, 5.0, 4.0


class Kept:
    def keep(self, request: Request, blob: bytes) -> tuple[str, str]:
        return "file", "digest of it"


class Story:
    """The first group is there, the second comes while it is trained, the third waits; one spot worker fetches."""

    def __init__(self) -> None:
        pipeline = PipelineConfig(gap=True)
        self.dispatcher, self.node = dispatcher_with(SlotClass.RESERVED, Kept())
        self.dispatcher.assist = Assist(pipeline, self.dispatcher.directory, self.dispatcher.scheduler)
        self.clock = VirtualClock(asyncio.get_running_loop())
        self.hub = Hub(self.dispatcher, self.clock, self.send)
        self.steps = Steps(
            self.hub,
            cast(Gang, self),
            cast(Rollouts, self),
            Schedule(updates=1, run_seed=0, pipeline=pipeline, is_fixed=False),
        )
        self.wanted = [[request(SIZE * group + place, group) for place in range(SIZE)] for group in range(GROUPS)]
        self.leased: list[tuple[RequestId, int]] = []
        self.trained_at: list[float] = []
        self._begin()

    def _begin(self) -> None:
        directory, scheduler, now = self.dispatcher.directory, self.dispatcher.scheduler, self.clock.now()
        directory.weights[CURRENT] = PublishedSet(DIGEST, "", announced_at=now)
        for group in self.wanted:
            directory.prompts[group[0].sample.prompt] = Prompt(text="a kite")
        for worker, trains in ((SPOT, False), (TRAINS, True)):
            directory.introduce(worker, KnownWorker(self.node, trains))
            scheduler.join(worker, SlotClass.RESERVED, SIZE, now)
        directory.workers[SPOT].fetch_s = FETCH_S
        directory.holds(TRAINS, CURRENT, now)
        scheduler.holds(TRAINS, [CURRENT])
        scheduler.pull(SPOT, SIZE, 1.0, now)
        for group in self.wanted[:2]:
            self.dispatcher.issue(group, [])
            self.asks()
        self.dispatcher.issue(self.wanted[2], [])
        self.draws(2)

    # -- the worker that trains ----------------------------------------------------------------------------------------

    def asks(self) -> None:
        self.hub.receive(self.node, m.Envelope(TRAINS, m.Pull(free_rows=SIZE, row_steps_per_s=4.0)), b"")

    def send(self, outgoing: Outgoing) -> None:
        if isinstance(outgoing.message, m.Grant):
            self.leased += [(each.request.id, each.attempt) for each in outgoing.message.leases]
            if self.trained_at:
                asyncio.get_running_loop().call_later(DRAW_S, self.draws, SIZE)

    def draws(self, count: int) -> None:
        for drawn, attempt in self.leased[:count]:
            result = m.Result(request=drawn, attempt=attempt, digest=DIGEST, score=m.Score(reward=0.0), steps=10)
            self.hub.receive(self.node, m.Envelope(TRAINS, result), b"")
        del self.leased[:count]

    # -- the gang ------------------------------------------------------------------------------------------------------

    def is_restored(self) -> bool:
        return True

    async def accumulate(self, train: m.Train) -> m.Accumulated:
        await self._train()
        return m.Accumulated(step=0, part=0)

    async def step(self, train: m.Train) -> m.Stepped:
        await self._train()
        return m.Stepped(step=0, digest="", figures={})

    async def _train(self) -> None:
        self.trained_at.append(self.clock.now())
        self.dispatcher.assist.train([TRAINS], self.clock.now())
        await asyncio.sleep(TRAIN_S)
        self.draws(len(self.leased))
        self.asks()

    # -- rollouts ------------------------------------------------------------------------------------------------------

    def requests_by_group(self, iteration: int) -> list[list[Request]]:
        return self.wanted

    def has_scale(self, iteration: int) -> bool:
        return True

    def awaited(self, iteration: int, group: list[Request]) -> list[RequestId]:
        return [request.id for request in group]

    def can_compare(self, iteration: int, group: int) -> bool:
        return self.dispatcher.ledger.group_complete(iteration, group)

    def compare_group(
        self, iteration: int, group: int, requests: Sequence[Request]
    ) -> tuple[Sequence[float], Sequence[bool]]:
        return [0.0] * SIZE, [True] * SIZE


def test_head_start_ends_when_all_that_was_left_to_draw_is_drawn():
    async def main() -> list[float]:
        story = Story()
        await story.steps.take(0)
        return [at - story.trained_at[0] for at in story.trained_at]

    first, second, third = run_virtually(main())
    assert (first, second) == (0.0, TRAIN_S + DRAW_S), "the third group is drawn after the first one's training"
    assert third == second + TRAIN_S


def test_head_start_is_half_of_the_wait_for_a_part_that_the_gang_can_draw_all_of():
    """The third group is there after a fetch of 60 s and ten steps of 2 s, and the gang has something to train for 4 s:
    what it draws comes a second sooner for each, if it has room for all. Else the others have to draw the rest."""

    async def main() -> tuple[float, float]:
        story = Story()
        ids = [[each.id for each in group] for group in story.wanted]
        assist, now = story.dispatcher.assist, story.clock.now()
        part, larger = Foreseen([ids[2]], 1, TRAIN_S), Foreseen(ids[1:], 2, TRAIN_S)
        return assist.head_start_s(part, TRAIN_S, now), assist.head_start_s(larger, TRAIN_S, now)

    waits_s = FETCH_S + 10 * 2.0 - TRAIN_S
    speeds = 1.0, 4.0
    assert run_virtually(main()) == pytest.approx((waits_s / 2, waits_s * speeds[0] / sum(speeds)))
