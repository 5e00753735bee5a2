"""The gang: orders to the training workers, one at a time, and recovery when one dies.

    ABSENT --Hello of the last rank--> IDLE --order--> BUSY --reply of rank 0--> IDLE
       ^                                 |               |
       +------------- lost --------------+----- lost ----+        the order raises GangLost

A new gang is at the beginning; `restore` brings it to a checkpoint, and before that every other order raises GangLost,
however long ago the loss was. `life` counts gangs. All ranks train; rank 0 also publishes and saves. The loss of one
rank is the loss of the gang. Only a checkpoint is written beside the next order, and its reply comes when it is on
disk.

Invariant: an order is ended by its own reply, by the gang's death or by its time limit, which turns a hang into a
death; late replies to an earlier order or of an earlier life are not taken for it (tests/unit/test_gang.py).
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import msgspec

from spotlight.controller.hub import Hub
from spotlight.core import messages as m
from spotlight.core.errors import Stopped, error_of
from spotlight.core.message import Message
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId

Reply = TypeVar("Reply", bound=Message)


DEATHS_ALLOWED = 12
"""Deaths during one kind of order without a success in between: more than preemptions explain."""
PATIENCE = 10
"""Time limit of an order, in longest reply times of its kind so far: a slower order hangs."""
KILL_S = 60.0
"""Seconds between the order to kill a worker and the report of its death."""


class GangState(StrEnum):
    ABSENT = "absent"
    IDLE = "idle"
    BUSY = "busy"


class GangLost(Exception):
    """The training worker died; what it had in memory since the last checkpoint is gone."""


@dataclass(eq=False)
class Ordered:
    """An order in progress or finished, and its reply."""

    order: m.AnyMessage
    worker: WorkerId
    life: int
    reply: m.AnyMessage | None = None


class Gang:
    """The training workers as the loop sees them."""

    def __init__(self, hub: Hub, timeout_s: float, ranks: int = 1, start_s: float = math.inf) -> None:
        """`timeout_s` is the time limit of one order, `start_s` that of the start of a worker."""
        self._hub = hub
        self._timeout_s = timeout_s
        self._start_s = start_s
        self._longest_s: dict[str, float] = {}
        """Longest reply time by kind of order: per sample for orders to train, else per order."""
        self._ranks = ranks
        self.state = GangState.ABSENT
        self.life = 0
        self._restored = 0
        """The life that was restored to the ledger's step."""
        self._joined: list[WorkerId] = []
        """Training workers in the order in which they joined."""
        self._workers: list[WorkerId] = []
        """The newest of them, by rank; a gang once all ranks are present."""
        self._trained: set[WorkerId] = set()
        """Workers that were ordered to train."""
        self._underway: list[Ordered] = []
        """Orders without a reply yet: at most a checkpoint and one other order."""
        self._deaths: dict[str, int] = {}

    async def restore(self, step: int, path: str) -> None:
        """Bring a gang, new or old, to that checkpoint; an empty path is the base model."""
        await self.present()
        used = [worker for worker in self._workers if worker in self._trained]
        if used and not path:
            # A worker that trained before (it is back, or the others are new) cannot undo its steps. All are killed at
            # once, because their replacements then start in parallel.
            await self._end(used, self.life, f"the training worker {', '.join(used)} has to restart")
            raise GangLost(f"the training worker {', '.join(used)} had taken steps that no checkpoint holds")
        await self._ordered(m.Restore(step=step, path=path), m.Saved)
        self._restored = self.life

    async def accumulate(self, train: m.Train) -> m.Accumulated:
        """Train a part of an update that is not its last."""
        return await self._ordered(train, m.Accumulated)

    async def step(self, train: m.Train) -> m.Stepped:
        """Train a whole update, or its last part, and take the optimizer step."""
        return await self._ordered(train, m.Stepped)

    async def publish(self, weights: tuple[WeightsId, ...]) -> list[m.PublishedWeights]:
        """Publish each set into the node's store, one by one."""
        return [await self._ordered(m.Publish(weights=(which,)), m.PublishedWeights) for which in weights]

    def save(self, step: int, path: str) -> Ordered:
        """Begin a checkpoint of the gang's current state; later orders do not wait for it."""
        order = m.Save(step=step, path=path)
        self._check_restored(order)
        return self._start(order)

    async def saved(self, saving: Ordered) -> None:
        """Wait until the checkpoint is whole on disk."""
        await self._await_reply(saving, m.Saved)

    def claim(self) -> None:
        """Give the gang's workers no more rollout work until they pull again, because they train next."""
        self._hub.dispatcher.assist.train(self._workers, self._hub.clock.now())

    async def present(self) -> bool:
        """Wait for a gang; True if it is the one that was restored last."""
        await self._hub.until(self._is_present, f"the gang's {self._ranks} training workers")
        return self.life == self._restored

    @property
    def is_busy(self) -> bool:
        """Whether an order is in progress, which has a time limit of its own."""
        return bool(self._underway)

    def is_restored(self) -> bool:
        """Whether the present gang is the one that was restored last."""
        return self._is_present() and self.life == self._restored

    def _is_present(self) -> bool:
        self._read_mail()
        return self.state is not GangState.ABSENT

    async def _ordered(self, order: m.AnyMessage, reply: type[Reply]) -> Reply:
        self._check_restored(order)
        # Before it is sent: sending wakes waiters, which may find the gang gone.
        self.state = GangState.BUSY
        ordered = self._start(order)
        try:
            return await self._await_reply(ordered, reply)
        finally:
            if not self._is_lost(ordered.life):
                self.state = GangState.IDLE

    def _check_restored(self, order: m.AnyMessage) -> None:
        if not self._is_present() or (self.life != self._restored and not isinstance(order, m.Restore)):
            raise GangLost(f"the training worker was lost before {type(order).__name__} could be ordered")

    def _start(self, order: m.AnyMessage) -> Ordered:
        ordered = Ordered(order, self._workers[0], self.life)
        self._underway.append(ordered)
        self._send(order)
        return ordered

    async def _await_reply(self, ordered: Ordered, reply: type[Reply]) -> Reply:
        def ended() -> bool:
            self._read_mail()
            return ordered.reply is not None or self._is_lost(ordered.life)

        name, began, limit_s = type(ordered.order).__name__, self._hub.clock.now(), self._limit_s(ordered.order)
        try:
            async with asyncio.timeout(limit_s):
                await self._hub.until(ended, f"{name} by {ordered.worker}")
        except TimeoutError:
            await self._end_hang(ordered, limit_s)
        finally:
            self._underway.remove(ordered)
        answer = ordered.reply
        if self._is_lost(ordered.life) or answer is None:
            self._count_death(name)
            raise GangLost(f"the training worker {ordered.worker} died during {name}")
        self._deaths.pop(name, None)
        taken_s = (self._hub.clock.now() - began) / _size(ordered.order)
        self._longest_s[name] = max(self._longest_s.get(name, 0.0), taken_s)
        if isinstance(answer, m.Failed):
            raise error_of(answer.exit_code, f"training stopped: {answer.problem}")
        if not isinstance(answer, reply):
            raise TypeError(f"{name} received the reply {type(answer).__name__}")
        return answer

    def _send(self, order: m.AnyMessage) -> None:
        dispatcher = self._hub.dispatcher
        if isinstance(order, m.Train):
            self._trained.update(self._workers)
            self.claim()
            for rank, worker in enumerate(self._workers):
                dispatcher.command(worker, msgspec.structs.replace(order, rank=rank, ranks=self._ranks))
        else:
            if isinstance(order, m.Save):
                dispatcher.assist.occupy(self._workers[0], self._hub.clock.now())
            dispatcher.command(self._workers[0], order)
        self._hub.flush()

    def _is_lost(self, life: int) -> bool:
        return self.life != life or self.state is GangState.ABSENT

    def _limit_s(self, order: m.AnyMessage) -> float:
        """Time limit of an order: the setting, or a multiple of the longest earlier order of its kind."""
        longest_s = self._longest_s.get(type(order).__name__)
        if longest_s is None:
            return self._timeout_s
        return min(self._timeout_s, self._start_s + PATIENCE * longest_s * _size(order))

    async def _end_hang(self, ordered: Ordered, limit_s: float) -> None:
        """Kill a worker whose reply is missing: a hung process may still send heartbeats."""
        worker, name = ordered.worker, type(ordered.order).__name__
        what = f"the training worker {worker} sent no reply to {name} within {limit_s:.0f} s"
        longer = "train.timeout_s" if limit_s == self._timeout_s else "cluster.start_s"
        self._hub.dispatcher.setbacks.note(
            worker,
            f"{what}, so it hangs and is killed, and the next one resumes from the newest checkpoint; raise {longer} "
            "if it needs that long.",
        )
        await self._end([worker], ordered.life, what)

    async def _end(self, workers: Sequence[WorkerId], life: int, what: str) -> None:
        """Kill the workers and wait until they are reported dead."""
        for worker in workers:
            await self._hub.kill(worker)

        def is_dead() -> bool:
            self._read_mail()
            return self._is_lost(life)

        try:
            async with asyncio.timeout(KILL_S):
                await self._hub.until(is_dead, f"the end of {', '.join(workers)}, which was killed")
        except TimeoutError:
            raise Stopped(
                f"{what} and could not be killed within {KILL_S:g} s, so no worker can train; look at its node, "
                "then resume."
            ) from None

    def _count_death(self, name: str) -> None:
        """Stop the run if gangs die during the same order again and again."""
        deaths = self._deaths[name] = self._deaths.get(name, 0) + 1
        if deaths >= DEATHS_ALLOWED:
            raise Stopped(
                f"{deaths} training workers in a row died during {name}, so it is the order that kills them; look at "
                "the logs of the reserved node (memory, disk), then resume."
            )

    def _read_mail(self) -> None:
        """Update the members of the gang, and match replies with orders."""
        directory = self._hub.dispatcher.directory
        self._gather([worker for worker in self._joined if worker in directory.workers])
        mail, self._hub.dispatcher.to_gang = self._hub.dispatcher.to_gang, []
        for worker, message in mail:
            if isinstance(message, m.Hello) and worker in directory.workers:
                self._gather([*(other for other in self._joined if other != worker), worker])
            elif self._workers and worker == self._workers[0]:
                self._match_reply(message)

    def _match_reply(self, message: m.AnyMessage) -> None:
        for ordered in self._underway:
            if ordered.reply is None and ordered.life == self.life and _is_reply(message, ordered.order):
                ordered.reply = message

    def _gather(self, joined: list[WorkerId]) -> None:
        """Take the newest workers as the gang; an older one returns if a newer one goes, without another Hello."""
        self._joined, workers = joined, joined[-self._ranks :]
        if workers != self._workers:
            self._workers = workers
            is_whole = len(workers) == self._ranks
            self.state = GangState.IDLE if is_whole else GangState.ABSENT
            self.life += is_whole


def _size(order: m.AnyMessage) -> int:
    """Samples of an order to train; other orders of a kind do not differ in size."""
    return max(len(order.items), 1) if isinstance(order, m.Train) else 1


def _is_reply(message: m.AnyMessage, order: m.AnyMessage) -> bool:
    """Whether the message replies to this order; a failure names no order and ends all in progress.

    A restored worker first reports the outcome of the checkpoint that it was writing, so that its Saved is not taken
    for that of the same step in its next life.
    """
    match order, message:
        case _, m.Failed():
            return True
        case m.Train(), m.Accumulated():
            return (message.step, message.part) == (order.step, order.part)
        case m.Train(), m.Stepped():
            return order.is_final and message.step == order.step
        case m.Publish(), m.PublishedWeights():
            return message.weights in order.weights
        case ((m.Save() | m.Restore()), m.Saved()):
            is_restored = isinstance(order, m.Restore)
            return (message.step, message.path, message.restored) == (order.step, order.path, is_restored)
        case _:
            return False
