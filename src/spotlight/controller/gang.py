"""The gang: orders to the training ranks, one at a time, and recovery when one dies.

    ABSENT --a worker on every slot--> FORMING --GangFormed of all--> IDLE --order--> BUSY --replies--> IDLE
       ^                                  |                             |               |
       +------------- lost ---------------+------------ lost -----------+----- lost ----+

A gang is lost when one of its ranks dies or reports a broken exchange. The order in progress then raises GangLost, and
the living processes stay: `present` forms the next gang of them and of the replacement or, if the gang is elastic, of
them alone. A step that a living rank has taken counts. A new gang is at no known step: `restore` brings it to a
checkpoint or to the state that one of its ranks holds, and before that every other order raises GangLost, however long
ago the loss was. A gang of one slot has no rank to connect to, so its worker's Hello forms it.

`life` counts gangs. All ranks execute all orders; only rank 0 replies to Publish and Save. Only a checkpoint is written
beside the next order, and its reply comes when it is on disk.

Invariant: an order is ended by its own replies, by the gang's loss or by its time limit, which turns a hang into a
death; late replies to an earlier order or of an earlier life are not taken for it (tests/unit/test_gang.py).
"""

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import TypeVar

import msgspec

from spotlight.controller.gang_members import GangMembers, GangSettings
from spotlight.controller.gang_orders import GangOrder, Ordered, differing, order_size
from spotlight.controller.hub import Hub
from spotlight.core import messages as m
from spotlight.core.errors import Stopped, error_of
from spotlight.core.message import Message
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import WeightsId

Reply = TypeVar("Reply", bound=Message)

DEATHS_ALLOWED = 12
"""Losses during one kind of order without a success in between: more than preemptions explain."""
PATIENCE = 10
"""Time limit of an order, in longest reply times of its kind so far: a slower order hangs."""
KILL_S = 60.0
"""Seconds between the order to kill a worker and the report of its death."""


class GangState(StrEnum):
    ABSENT = "absent"
    FORMING = "forming"
    IDLE = "idle"
    BUSY = "busy"


class GangLost(Exception):
    """A training rank died or an exchange failed; the order was not carried out."""


class Gang:
    """The training workers as the loop sees them."""

    def __init__(self, hub: Hub, settings: GangSettings) -> None:
        self._hub = hub
        self._settings = settings
        self._members = GangMembers(settings)
        self._longest_s: dict[str, float] = {}
        """Longest reply time by kind of order: per sample for orders to train, else per order."""
        self.state = GangState.ABSENT
        self.life = 0
        self.trained_s = 0.0
        """Seconds of all orders to train so far."""
        self._restored = 0
        """The life that was restored to the ledger's step."""
        self._workers: list[WorkerId] = []
        """The gang's workers by rank."""
        self._held: dict[WorkerId, int] = {}
        """Optimizer steps that each rank held when the gang was formed."""
        self._trained: set[WorkerId] = set()
        """Workers that were ordered to train or to take over a state: they cannot go back to the base model."""
        self._underway: list[Ordered] = []
        """Orders without a reply yet: at most a checkpoint and one other order."""
        self._deaths: dict[str, int] = {}
        self._forming = asyncio.Lock()

    # -- forming -------------------------------------------------------------------------------------------------------

    async def present(self) -> bool:
        """Wait for a gang, and form one if necessary; True if it is the one that was restored last."""
        async with self._forming:
            while True:
                # Also where a gang is present: this raises the error of a run that has failed.
                await self._hub.until(self._can_form, self._members.missing)
                if self._is_present():
                    return self.life == self._restored
                await self._form(self._members.next_gang(self._hub.clock.now()))

    async def grow(self) -> None:
        """Form a new gang if slots that were missing have workers again."""
        if self._is_present() and not self.is_busy and len(self._members.candidates()) > len(self._workers):
            self._lose()
            await self.present()

    def holder(self, step: int) -> int | None:
        """A rank of a newly formed gang that holds this number of steps; None: no rank does."""
        ranks = [rank for rank, worker in enumerate(self._workers) if self._held.get(worker) == step]
        return ranks[0] if ranks else None

    async def restore(self, step: int, path: str, source: int | None = None) -> None:
        """Bring a gang, new or old, to a checkpoint or to the state of rank `source`; no path is the base model."""
        await self.present()
        if source is not None and len(self._workers) == 1:
            self._restored = self.life
            return
        used = [worker for worker in self._workers if worker in self._trained]
        if used and not path and source is None:
            # A worker that trained before (it is back, or the others are new) cannot undo its steps. All are killed at
            # once, because their replacements then start in parallel.
            await self._end(used, f"the training worker {', '.join(used)} has to restart")
            raise GangLost(f"the training worker {', '.join(used)} had taken steps that no checkpoint holds")
        await self._ordered(m.Restore(step=step, path=path, source=source), m.Saved)
        self._restored = self.life

    def is_restored(self) -> bool:
        """Whether the present gang is the one that was restored last."""
        return self._is_present() and self.life == self._restored

    def _can_form(self) -> bool:
        self._read_mail()
        return self.state is not GangState.ABSENT or bool(self._members.next_gang(self._hub.clock.now()))

    def _is_present(self) -> bool:
        self._read_mail()
        return self.state in (GangState.IDLE, GangState.BUSY)

    async def _form(self, workers: Sequence[WorkerId]) -> None:
        """Connect the ranks: rank 0 opens a store, and all meet there."""
        self._begin(workers, GangState.FORMING)
        self._note_kinds()
        if len(workers) < self._settings.ranks:
            now_without = f"training goes on with {len(workers)} ranks, without {self._members.missing()}"
            self._hub.dispatcher.setbacks.note("training", f"{now_without}; it grows again when they are back.")
        ranks, epoch, store = len(workers), self.life, ""
        if ranks > 1:
            opened = await self._ordered(m.FormGang(epoch=epoch, rank=0, ranks=ranks), m.StoreOpened, workers[:1])
            store = opened.store
        formed = self._start(m.FormGang(epoch=epoch, rank=0, ranks=ranks, store=store), workers)
        await self._await_reply(formed, m.GangFormed)
        replies = formed.replies.items()
        self._held = {worker: reply.steps for worker, reply in replies if isinstance(reply, m.GangFormed)}
        self.state = GangState.IDLE

    def _begin(self, workers: Sequence[WorkerId], state: GangState) -> None:
        self._workers, self._held = list(workers), {}
        self.life += 1
        self.state = state

    def _note_kinds(self) -> None:
        kinds = self._members.kinds(self._workers)
        if len(kinds) > 1:
            named = "; ".join(f"{kind or 'unknown'}: {', '.join(slots)}" for kind, slots in sorted(kinds.items()))
            self._hub.dispatcher.setbacks.note_once(
                NodeId("gang.devices"),
                f"the ranks train on different devices ({named}), so each takes a share by its measured speed, and an "
                "update lasts as long as the slowest; use equal devices for equal shares.",
            )

    # -- orders --------------------------------------------------------------------------------------------------------

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
        return self._start(order, self._workers)

    async def saved(self, saving: Ordered) -> None:
        """Wait until the checkpoint is whole on disk."""
        await self._await_reply(saving, m.Saved)

    def claim(self) -> None:
        """Give the gang's workers no more rollout work until they pull again, because they train next."""
        self._hub.dispatcher.assist.train(self._workers, self._hub.clock.now())

    @property
    def is_busy(self) -> bool:
        """Whether an order is in progress, which has a time limit of its own."""
        return bool(self._underway)

    async def _ordered(self, order: GangOrder, reply: type[Reply], workers: Sequence[WorkerId] = ()) -> Reply:
        self._check_restored(order)
        # Before it is sent: sending wakes waiters, which may find the gang gone.
        before, self.state = self.state, GangState.BUSY if self.state is GangState.IDLE else self.state
        ordered = self._start(order, workers or self._workers)
        try:
            return await self._await_reply(ordered, reply)
        finally:
            if not self._is_lost(ordered.life):
                self.state = before

    def _check_restored(self, order: GangOrder) -> None:
        if isinstance(order, m.FormGang):
            return
        if not self._is_present() or (self.life != self._restored and not isinstance(order, m.Restore)):
            raise GangLost(f"the training worker was lost before {type(order).__name__} could be ordered")

    def _start(self, order: GangOrder, workers: Sequence[WorkerId]) -> Ordered:
        repliers = workers[:1] if isinstance(order, m.Publish | m.Save) else workers
        ordered = Ordered(order, tuple(repliers), self.life)
        self._underway.append(ordered)
        self._send(order, workers)
        return ordered

    def _send(self, order: GangOrder, workers: Sequence[WorkerId]) -> None:
        dispatcher, now = self._hub.dispatcher, self._hub.clock.now()
        if isinstance(order, m.Train):
            self.claim()
        if isinstance(order, m.Train) or (isinstance(order, m.Restore) and (order.path or order.source is not None)):
            self._trained.update(workers)
        for rank, worker in enumerate(workers):
            if isinstance(order, m.Save | m.Publish):
                dispatcher.assist.occupy(worker, now)
            ranked = order
            if isinstance(order, m.Train | m.FormGang):
                ranked = msgspec.structs.replace(order, rank=rank, ranks=len(self._workers))
            dispatcher.send(worker, ranked)
        self._hub.flush()

    # -- replies -------------------------------------------------------------------------------------------------------

    async def _await_reply(self, ordered: Ordered, reply: type[Reply]) -> Reply:
        """The reply of rank 0, or of another rank that took a step and lives."""
        name, began, limit_s = ordered.name, self._hub.clock.now(), self._limit_s(ordered.order)
        try:
            async with asyncio.timeout(limit_s):
                await self._hub.until(lambda: self._has_ended(ordered), f"{name} by {ordered.workers[0]}")
        except TimeoutError:
            await self._end_hang(ordered, limit_s)
        finally:
            self._underway.remove(ordered)
        living = self._hub.dispatcher.directory.workers
        is_answered = not self._is_lost(ordered.life) and not ordered.broken and ordered.is_answered()
        if ordered.failure is None and not is_answered and ordered.life == self.life:
            self._lose()
        if ordered.failure is None and not is_answered and not ordered.taken_by(living):
            self._count_death(name)
            reason = "; ".join(ordered.broken.values()) or f"{', '.join(ordered.workers)}: a rank died"
            raise GangLost(f"the gang was lost during {name} ({reason})")
        self._deaths.pop(name, None)
        taken_s = self._hub.clock.now() - began
        self._longest_s[name] = max(self._longest_s.get(name, 0.0), taken_s / order_size(ordered.order))
        self.trained_s += taken_s if isinstance(ordered.order, m.Train) else 0.0
        if ordered.failure is not None:
            raise error_of(ordered.failure.exit_code, f"training stopped: {ordered.failure.problem}")
        _check_alike(ordered)
        answer = next(ordered.replies[worker] for worker in ordered.workers if worker in ordered.replies)
        if not isinstance(answer, reply):
            raise TypeError(f"{name} received the reply {type(answer).__name__}")
        return answer

    def _has_ended(self, ordered: Ordered) -> bool:
        self._read_mail()
        if ordered.failure is not None or (ordered.is_answered() and not self._is_lost(ordered.life)):
            return True
        if not isinstance(ordered.order, m.Train):
            return self._is_lost(ordered.life) or bool(ordered.broken)
        # Its survivors may have taken the step; they report either way.
        return not ordered.awaited(self._hub.dispatcher.directory.workers)

    def _is_lost(self, life: int) -> bool:
        return self.life != life or self.state is GangState.ABSENT

    def _lose(self) -> None:
        """The living ranks stay; the next gang is formed of them."""
        if self.state is not GangState.ABSENT:
            self.state = GangState.ABSENT
            living = self._hub.dispatcher.directory.workers
            self._members.lost([each for each in self._workers if each in living], self._hub.clock.now())

    def _read_mail(self) -> None:
        """Update the members of the gang, and match replies with orders."""
        directory = self._hub.dispatcher.directory
        mail, self._hub.dispatcher.to_gang = self._hub.dispatcher.to_gang, []
        for worker, message in mail:
            if isinstance(message, m.Hello) and worker in directory.workers:
                self._members.join(worker, message.kind)
            else:
                self._match(worker, message)
        self._members.keep(directory.workers)
        candidates = self._members.candidates()
        if self.state is not GangState.ABSENT and not set(self._workers) <= set(candidates):
            self._lose()
        if self.state is GangState.ABSENT and self._settings.ranks == 1 and candidates:
            self._begin(candidates, GangState.IDLE)

    def _match(self, worker: WorkerId, message: m.AnyMessage) -> None:
        """Give a message to the orders of the sender's gang, and to its training order even where another worker has
        come in between: that order waits for its workers as long as they live."""
        if isinstance(message, m.GangBroken) and message.epoch != self.life:
            return
        for ordered in self._underway:
            is_present = ordered.life == self.life and worker in self._workers
            if is_present or (isinstance(ordered.order, m.Train) and worker in ordered.workers):
                ordered.receive(worker, message)
        if isinstance(message, m.GangBroken) and not self._underway and worker in self._workers:
            self._lose()

    # -- time limits ---------------------------------------------------------------------------------------------------

    def _limit_s(self, order: GangOrder) -> float:
        """Time limit of an order: the setting, or a multiple of the longest earlier order of its kind."""
        longest_s = self._longest_s.get(type(order).__name__)
        if longest_s is None:
            return self._settings.timeout_s
        return min(self._settings.timeout_s, self._settings.start_s + PATIENCE * longest_s * order_size(order))

    async def _end_hang(self, ordered: Ordered, limit_s: float) -> None:
        """Kill the ranks whose reply is missing: a hung process may still send heartbeats.

        Ranks that wait for them in an exchange stay; they are killed too if they do not leave it.
        """
        directory = self._hub.dispatcher.directory
        hung = ordered.hung(directory.workers)
        what = f"the training worker {', '.join(hung)} sent no reply to {ordered.name} within {limit_s:.0f} s"
        longer = "train.timeout_s" if limit_s == self._settings.timeout_s else "cluster.start_s"
        for worker in hung:
            self._hub.dispatcher.setbacks.note(
                worker,
                f"{what}, so it hangs and is killed, and its step is repeated; raise {longer} if it needs that long.",
            )
        await self._end(hung, what)
        try:
            async with asyncio.timeout(KILL_S):
                await self._hub.until(lambda: self._has_ended(ordered))
        except TimeoutError:
            await self._end(ordered.awaited(directory.workers), what)

    async def _end(self, workers: Sequence[WorkerId], what: str) -> None:
        """Kill the workers and wait until they are reported dead."""
        for worker in workers:
            await self._hub.kill(worker)

        def are_dead() -> bool:
            self._read_mail()
            return not any(worker in self._hub.dispatcher.directory.workers for worker in workers)

        try:
            async with asyncio.timeout(KILL_S):
                await self._hub.until(are_dead, f"the end of {', '.join(workers)}, which was killed")
        except TimeoutError:
            raise Stopped(
                f"{what} and could not be killed within {KILL_S:g} s, so no worker can train; look at its node, "
                "then resume."
            ) from None

    def _count_death(self, name: str) -> None:
        """Stop the run if gangs are lost during the same order again and again."""
        deaths = self._deaths[name] = self._deaths.get(name, 0) + 1
        if deaths >= DEATHS_ALLOWED:
            raise Stopped(
                f"{deaths} training workers in a row died during {name}, so it is the order that kills them; look at "
                "the logs of the reserved node (memory, disk), then resume."
            )


def _check_alike(ordered: Ordered) -> None:
    """Ranks that took one step hold the same weights, or the run must not go on."""
    by_digest = differing(ordered.replies)
    if len(by_digest) > 1:
        named = "; ".join(f"{digest[:12]}: {', '.join(workers)}" for digest, workers in sorted(by_digest.items()))
        raise Stopped(
            f"the training ranks hold different weights after the same step ({named}), so they trained apart; resume "
            "from the newest checkpoint, and report this as a bug."
        )
