"""Orders to the training worker, one at a time, and what happens when it dies in between.

    ABSENT --Hello--> IDLE --order--> BUSY --reply--> IDLE
       ^                |               |
       +----- lost -----+----- lost ----+        the order raises GangLost

A gang that has just come is at the beginning; `restore` brings it to a checkpoint, and until then it takes no other
order: whoever orders is told that the gang was lost, however long ago that was. `life` counts gangs.
"""

from enum import StrEnum
from typing import TypeVar

from spotlight.core import messages as m
from spotlight.core.errors import Stopped
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId
from spotlight.runtime.hub import Hub

Reply = TypeVar("Reply", bound=m.Message)


DEATHS_ALLOWED = 12
"""Over one kind of order without a success in between: more than any market takes reserved workers."""


class GangState(StrEnum):
    ABSENT = "absent"
    IDLE = "idle"
    BUSY = "busy"


class GangLost(Exception):
    """The training worker died; what it had in memory since the last checkpoint is gone."""


class Gang:
    """The training worker as the loop sees it."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.state = GangState.ABSENT
        self.life = 0
        self._restored = 0
        """The life that was brought to where the ledger is."""
        self._worker: WorkerId | None = None
        self._deaths: dict[str, int] = {}

    async def restore(self, step: int, path: str) -> None:
        """A gang, new or old, at that checkpoint; an empty path is the base model."""
        await self.present()
        await self._ordered(m.Restore(step=step, path=path), m.Saved)
        self._restored = self.life

    async def step(self, train: m.Train) -> m.Stepped:
        return await self._ordered(train, m.Stepped)

    async def publish(self, weights: tuple[WeightsId, ...]) -> list[m.PublishedWeights]:
        """Each set into the node's store, one by one."""
        return [await self._ordered(m.Publish(weights=(which,)), m.PublishedWeights) for which in weights]

    async def save(self, step: int, path: str) -> None:
        await self._ordered(m.Save(step=step, path=path), m.Saved)

    def claim(self) -> None:
        """It trains next: no more rollout work for it until it asks again."""
        if self._worker is not None:
            self._hub.dispatcher.rest(self._worker, self._hub.clock.now())

    async def present(self) -> bool:
        """Wait for a gang; whether it is the one that was restored last."""
        await self._hub.until(self._is_here)
        return self.life == self._restored

    def _is_here(self) -> bool:
        self._read_mail()
        return self.state is not GangState.ABSENT

    async def _ordered(self, order: m.AnyMessage, reply: type[Reply]) -> Reply:
        if not self._is_here() or (self.life != self._restored and not isinstance(order, m.Restore)):
            raise GangLost(f"the training worker went before {type(order).__name__} could be ordered")
        life, worker = self.life, self._worker
        assert worker is not None
        self.state = GangState.BUSY
        if isinstance(order, m.Train):
            self.claim()
        self._hub.dispatcher.command(worker, order)
        self._hub.flush()
        answers: list[m.AnyMessage] = []

        def answered() -> bool:
            answers.extend(self._read_mail())
            return bool(answers) or self.life != life or self.state is GangState.ABSENT

        await self._hub.until(answered)
        if self.life != life or not answers:
            self._count_death(order)
            raise GangLost(f"the training worker {worker} died during {type(order).__name__}")
        answer = answers[0]
        self.state = GangState.IDLE
        self._deaths.pop(type(order).__name__, None)
        if isinstance(answer, m.Failed):
            raise Stopped(f"training stopped: {answer.problem}")
        if not isinstance(answer, reply):
            raise TypeError(f"{type(order).__name__} was answered by {type(answer).__name__}")
        return answer

    def _count_death(self, order: m.AnyMessage) -> None:
        """Gangs that die over the same order again and again do so because of it."""
        name = type(order).__name__
        deaths = self._deaths[name] = self._deaths.get(name, 0) + 1
        if deaths >= DEATHS_ALLOWED:
            raise Stopped(
                f"{deaths} training workers in a row died during {name}, so it is the order that kills them; look at "
                "the logs of the reserved node (memory, disk), then resume."
            )

    def _read_mail(self) -> list[m.AnyMessage]:
        """Replies of the present gang; a Hello of a new one replaces it."""
        directory = self._hub.dispatcher.directory
        if self._worker is not None and self._worker not in directory.workers:
            self.state, self._worker = GangState.ABSENT, None
        mail, self._hub.dispatcher.to_gang = self._hub.dispatcher.to_gang, []
        answers: list[m.AnyMessage] = []
        for worker, message in mail:
            if isinstance(message, m.Hello) and worker in directory.workers:
                self.state, self._worker, self.life = GangState.IDLE, worker, self.life + 1
                answers.clear()
            elif worker == self._worker:
                answers.append(message)
        return answers
