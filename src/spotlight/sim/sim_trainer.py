"""The simulated training role: theta's digest is a hash chain over everything that it was trained on.

Replies and refuses as `compute.train.role.TrainingRole` does. `nonce` stands for the last bits of the real trainer: the
worker's id, or empty in deterministic mode; the ranks of a gang share that of rank 0.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec

from spotlight.compute.profiling.pace import Pace
from spotlight.controller.gang_orders import GangOrder
from spotlight.core import messages as m
from spotlight.core.errors import Stopped
from spotlight.core.types import WorkerId
from spotlight.core.work import Policy, RequestId
from spotlight.sim.background_writes import BackgroundWrites
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.fakes import mark
from spotlight.sim.numerics import Numerics, TrainedState
from spotlight.sim.sim_gang import CONNECT_S, SimGang, SimGangs, SimRankLost
from spotlight.sim.storage import SimStorage

PARTS_S = 0.1
"""Time between two looks for the other ranks' parts of a checkpoint."""
Used: TypeAlias = tuple[RequestId, str, float, bool]
"""Request, tensor digest, advantage, and whether it is trained on."""


@dataclass(frozen=True)
class _TrainedPart:
    order: m.Train
    used: list[Used]


def _by_group(parts: Sequence[_TrainedPart]) -> Iterator[tuple[int, Used]]:
    for part in parts:
        for item, used in zip(part.order.items, part.used, strict=True):
            yield item.request.group, used


def _joined(orders: Sequence[m.Train]) -> m.Train:
    """The orders of all parts as one order, sorted by group."""
    if len(orders) == 1:
        return orders[0]
    items = sorted((item for order in orders for item in order.items), key=lambda item: item.request.group)
    return msgspec.structs.replace(orders[-1], items=tuple(items), part=0, samples=None)


class SimTrainer:
    """The trainer of one process; a new process begins at the base model."""

    def __init__(self, storage: SimStorage, nonce: str, numerics: Numerics, gangs: SimGangs | None = None) -> None:
        self._storage = storage
        self._nonce = nonce
        self._numerics = numerics
        self._gangs = gangs or SimGangs()
        self.gang: SimGang | None = None
        """None: it trains alone."""
        self.rank = 0
        self.epoch = 0
        self.state = TrainedState()
        self._partial = ""
        """Partial file of the checkpoint that it writes."""
        self._parts: list[_TrainedPart] = []
        """Parts of the next step so far."""

    def open_store(self, order: m.FormGang, worker: WorkerId) -> m.StoreOpened:
        self.leave()
        store = self._gangs.open(worker, order.epoch, order.ranks, self._nonce)
        return m.StoreOpened(epoch=order.epoch, store=store)

    async def form(self, order: m.FormGang) -> m.GangFormed:
        """Connect to the other ranks; a gang of one only leaves the earlier one."""
        self.leave()
        self.rank, self.epoch = order.rank, order.epoch
        if order.ranks > 1:
            self.gang = self._gangs.at(order.store)
            await self.gang.exchange(order.rank, CONNECT_S)
        return m.GangFormed(epoch=order.epoch, steps=self.state.steps)

    def leave(self) -> None:
        """Leave the gang, as the end of the process does; what was accumulated is dropped."""
        self._parts = []
        if self.gang is not None:
            self.gang.leave()
            self.gang = None

    async def exchange(self) -> None:
        """Wait for the other ranks, and make this rank's state available to them."""
        if self.gang is not None:
            self.gang.states[self.rank] = self.state
            await self.gang.exchange(self.rank)

    def train(self, order: m.Train) -> m.Stepped | m.Accumulated:
        self._check_order(order)
        used = [(item.request.id, self._payload(item), item.advantage, item.kept) for item in order.items]
        parts = [] if order.part == 0 else self._parts
        self._parts = [*parts, _TrainedPart(order, used)]
        if not order.is_final:
            return m.Accumulated(step=order.step, part=order.part)
        whole, self._parts = self._parts, []
        return self._step(whole)

    def _step(self, parts: Sequence["_TrainedPart"]) -> m.Stepped:
        """One optimizer step over all parts; their order changes the digest if the numerics count last bits."""
        state, order = self.state, _joined([part.order for part in parts])
        used = [each for _, each in sorted(_by_group(parts), key=lambda one: one[0])]
        cuts = [part.used for part in parts] if len(parts) > 1 and self._numerics.counts_bits else []
        nonce = self._nonce if self.gang is None else self.gang.nonce
        theta = mark("theta", state.theta, order.step, used, nonce, *cuts)
        self.state = TrainedState(
            state.steps + 1,
            theta,
            mark("behaviour", theta) if order.last else state.behaviour,
            mark("average", state.average, theta),
            state.behaviour if order.last else state.before,
        )
        # Of one step, whatever the number of ranks.
        figures = dict(self._numerics.trained(state, order, self.state)) if self.rank == 0 else {}
        return m.Stepped(step=order.step, digest=theta, figures=figures)

    def _check_order(self, order: m.Train) -> None:
        """As the real role: every sample of a step once, and no part of an abandoned step."""
        if order.step != self.state.steps:
            raise Stopped(
                f"the trainer holds {self.state.steps} steps but step {order.step} was ordered; restore it first."
            )
        before = [] if order.part == 0 else self._parts
        name = f"part {order.part} of step {order.step}"
        if order.part != len(before):
            raise Stopped(f"{name} was ordered after {len(before)} parts; order the step again from part 0.")
        requests = [item.request.id for part in [*(part.order for part in before), order] for item in part.items]
        if len(set(requests)) < len(requests):
            raise Stopped(f"{name} has a sample that the step already has; order every sample once.")
        if order.samples is None and not (order.part == 0 and order.is_final):
            raise Stopped(f"{name} does not say how many samples the step has; set samples in every part.")
        ages = {order.iteration - item.request.sample.version for item in order.items}
        if not ages <= {0, 1}:
            raise Stopped(f"{name} has samples that are {sorted(ages)} versions old; give it none older than one.")
        if order.is_final and not requests:
            raise Stopped(f"step {order.step} has no sample; nothing can be learned from it.")
        if order.is_final and order.samples not in (None, len(requests)):
            raise Stopped(f"{name} says that the step has {order.samples} samples, but it has {len(requests)}.")

    def publish(self, order: m.Publish) -> m.PublishedWeights:
        (weights,) = order.weights
        digest = self.state.average if weights.policy is Policy.AVERAGE else self.state.behaviour
        path = self._storage.weights_path(weights)
        if self._storage.weights.setdefault(path, digest) != digest:
            raise Stopped(f"{path} is {self._storage.weights[path]}, not {digest}; published weights never change.")
        return m.PublishedWeights(weights=weights, digest=digest, size=1, step=self.state.steps)

    def snapshot(self, order: m.Save) -> bytes:
        """Start a checkpoint under a partial name; return its content."""
        self._partial = self._storage.begin_checkpoint(order.path)
        return msgspec.msgpack.encode(self.state)

    def save(self, order: m.Save, snapshot: bytes) -> m.Saved:
        self._storage.end_checkpoint(order.path, self._partial, snapshot)
        return m.Saved(step=order.step, path=order.path)

    def restore(self, order: m.Restore) -> m.Saved:
        self._parts = []
        if order.source is not None:
            assert self.gang is not None or order.source == self.rank
            held = self.state if self.gang is None else self.gang.states[order.source]
            assert isinstance(held, TrainedState)
            self.state = held
        elif order.path:
            self.state = msgspec.msgpack.decode(self._storage.checkpoints[order.path], type=TrainedState)
        elif self.state.steps:
            raise Stopped(f"the trainer has taken {self.state.steps} steps and cannot go back to none.")
        if self.state.steps != order.step:
            raise Stopped(f"the checkpoint {order.path} has {self.state.steps} steps, not {order.step}.")
        return m.Saved(step=order.step, path=order.path, restored=True)

    def _payload(self, item: m.TrainItem) -> str:
        if item.payload not in self._storage.files:
            raise Stopped(f"{item.request.id} cannot be trained on, because its tensors {item.payload} are missing.")
        return self._storage.digest(item.payload)


class Trainee(Protocol):
    """The worker that carries out an order."""

    id: WorkerId
    send: Callable[..., None]
    background: BackgroundWrites

    async def take_time(self, seconds: float) -> None: ...

    def crash_if_due(self, point: CrashPoint) -> None:
        """Raise Crashed if the fault policy crashes the worker at this point."""


async def obey(order: GangOrder, trainer: SimTrainer, pace: Pace, worker: Trainee) -> None:
    """Carry out an order; report a refusal, or the loss of another rank."""
    try:
        await _carry_out(order, trainer, pace, worker)
    except Stopped as problem:
        worker.send(m.Failed(problem=str(problem), exit_code=problem.exit_code))
    except SimRankLost:
        trainer.leave()
        worker.send(m.GangBroken(epoch=trainer.epoch, problem="another rank is gone"))


async def _carry_out(order: GangOrder, trainer: SimTrainer, pace: Pace, worker: Trainee) -> None:
    """Spend the order's time, apply it, send the reply; the worker may crash in between."""
    match order:
        case m.FormGang() if order.ranks > 1 and not order.store:
            worker.send(trainer.open_store(order, worker.id))
        case m.FormGang():
            await worker.background.wait()
            formed = await trainer.form(order)
            worker.crash_if_due(CrashPoint.FORMED)
            worker.send(formed)
        case m.Train():
            await worker.take_time(pace.train(order))
            worker.crash_if_due(CrashPoint.ACCUMULATING)
            if order.is_final and trainer.gang is not None:
                worker.send(m.AwaitsRanks(step=order.step, part=order.part))
                await trainer.exchange()
                worker.crash_if_due(CrashPoint.EXCHANGED)
            reply = trainer.train(order)
            worker.crash_if_due(CrashPoint.STEPPED if order.is_final else CrashPoint.ACCUMULATED)
            worker.send(reply)
            worker.crash_if_due(CrashPoint.REPLY_SENT)
        case m.Publish():
            await worker.take_time(pace.publish(order))
            worker.crash_if_due(CrashPoint.PUBLISHING)
            if trainer.rank == 0:
                published = trainer.publish(order)
                worker.crash_if_due(CrashPoint.PUBLISHED)
                worker.send(published)
        case m.Save():
            await worker.background.wait()
            snapshot = trainer.snapshot(order) if trainer.rank == 0 else b""
            await worker.take_time(pace.snapshot())
            worker.background.start(lambda: _write(order, snapshot, trainer, pace.write(), worker))
        case m.Restore():
            # The checkpoint under way ends first, and so does its reply.
            await worker.background.wait()
            await worker.take_time(pace.load_s)
            if order.source is not None:
                await trainer.exchange()
            restored = trainer.restore(order)
            worker.crash_if_due(CrashPoint.RESTORING)
            worker.send(restored)


async def _write(order: m.Save, snapshot: bytes, trainer: SimTrainer, seconds: float, worker: Trainee) -> None:
    """Every rank writes its part; rank 0 completes the checkpoint once all parts are there."""
    gang = trainer.gang
    await worker.take_time(seconds)
    worker.crash_if_due(CrashPoint.SAVING)
    if gang is not None:
        gang.wrote(order.path, trainer.rank)
        while trainer.rank == 0 and not gang.is_whole(order.path):
            if gang.is_broken or trainer.gang is not gang:
                return
            await worker.take_time(PARTS_S)
    if trainer.rank > 0:
        worker.crash_if_due(CrashPoint.SAVED)
        return
    try:
        saved = trainer.save(order, snapshot)
    except Stopped as problem:
        worker.send(m.Failed(problem=str(problem), exit_code=problem.exit_code))
        return
    worker.crash_if_due(CrashPoint.SAVED)
    worker.send(saved)
