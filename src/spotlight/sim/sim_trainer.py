"""The simulated training role: the product's `TrainingCore` over a hash chain of everything that was trained on.

`nonce` stands for the last bits of the real trainer: the worker's id, or empty in deterministic mode; the ranks of a
gang share that of rank 0. `obey` drives the core with timers, storage and simulated connections, and crashes the worker
where the fault policy says so.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec

from spotlight.compute.profiling.pace import Pace
from spotlight.compute.train.training_core import TrainingCore, failure_reply
from spotlight.compute.train.training_effects import (
    AddPart,
    CheckpointAbandoned,
    CompareStates,
    Effect,
    JoinGang,
    LoadState,
    Order,
    ReadPart,
    ReceiveState,
    SendMessage,
    Settle,
    StartCheckpoint,
    StepTaken,
    TakeStep,
    WeightsWritten,
    WriteWeights,
)
from spotlight.core import messages as m
from spotlight.core.errors import SpotlightError, Stopped
from spotlight.core.work import Policy, RequestId, WeightsId
from spotlight.sim.background_writes import BackgroundWrites
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.fakes import mark
from spotlight.sim.numerics import Numerics, TrainedState
from spotlight.sim.sim_gang import CONNECT_S, SimGang, SimGangs
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

    is_sharded = False

    def __init__(
        self,
        storage: SimStorage,
        nonce: str,
        numerics: Numerics,
        gangs: SimGangs | None = None,
        takes_stale: bool = False,
    ) -> None:
        self.takes_stale = takes_stale
        self._storage = storage
        self._nonce = nonce
        self._numerics = numerics
        self._gangs = gangs or SimGangs()
        # A weak reference, so that a dead worker is freed without garbage collection.
        self.core = TrainingCore(weakref.proxy(self))
        self.gang: SimGang | None = None
        """None: it trains alone."""
        self.state = TrainedState()
        self._partial = ""
        """Partial file of the checkpoint that it writes."""
        self._parts: list[_TrainedPart] = []
        """Parts of the next step so far."""

    def abort(self, epoch: int) -> None:
        """End an exchange or the forming of a gang before this one: an order to form it has arrived."""
        self.core.announce(epoch)
        if self.core.epoch < epoch:
            self.break_gang()

    # -- engine of the core --------------------------------------------------------------------------------------------

    @property
    def trained_steps(self) -> int:
        return self.state.steps

    def leave(self) -> None:
        self.drop_update()
        self.break_gang()
        self.gang = None

    def break_gang(self) -> None:
        if self.gang is not None:
            self.gang.leave()

    def drop_update(self) -> None:
        self._parts = []

    def open_store(self, order: m.FormGang) -> str:
        return self._gangs.open(order.epoch, order.ranks, self._nonce)

    # -- effects of the core -------------------------------------------------------------------------------------------

    async def join(self, order: m.FormGang) -> None:
        if order.ranks > 1:
            self.gang = self._gangs.at(order.store)
            await self.gang.exchange(order.rank, CONNECT_S)

    def read(self, order: m.Train) -> list[Used]:
        return [(item.request.id, self._payload(item), item.advantage, item.kept) for item in order.items]

    def add(self, effect: AddPart) -> None:
        earlier = [] if effect.begins is not None else self._parts
        self._parts = [*earlier, _TrainedPart(effect.order, effect.read)]

    def step(self) -> StepTaken:
        """One optimizer step over all parts; their order changes the digest if the numerics count last bits."""
        parts, self._parts = self._parts, []
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
        figures: Mapping[str, float] = self._numerics.trained(state, order, self.state) if self.core.leads else {}
        return StepTaken(theta, figures)

    def digest_of(self, policy: Policy) -> str:
        """Digest of the weights that it would publish now."""
        return self.state.average if policy is Policy.AVERAGE else self.state.behaviour

    def write_weights(self, weights: WeightsId) -> WeightsWritten:
        digest = self.digest_of(weights.policy)
        path = self._storage.weights_path(weights)
        if self._storage.weights.setdefault(path, digest) != digest:
            raise Stopped(f"{path} is {self._storage.weights[path]}, not {digest}; published weights never change.")
        return WeightsWritten(digest, size=1)

    def snapshot(self, order: m.Save) -> bytes:
        """Start a checkpoint under a partial name; return its content."""
        self._partial = self._storage.begin_checkpoint(order.path)
        return msgspec.msgpack.encode(self.state)

    def save(self, order: m.Save, snapshot: bytes) -> None:
        self._storage.end_checkpoint(order.path, self._partial, snapshot)

    def load(self, path: str) -> None:
        if path:
            self.state = msgspec.msgpack.decode(self._storage.checkpoints[path], type=TrainedState)

    async def exchange(self) -> None:
        """Wait for the other ranks."""
        if self.gang is not None:
            await self.gang.exchange(self.core.rank)

    async def compare(self) -> None:
        """Wait for the other ranks, and make this rank's state available to them."""
        assert self.gang is not None
        self.gang.states[self.core.rank] = self.state
        await self.exchange()

    async def receive(self, source: int) -> None:
        """Take over the state of rank `source`, if no rank was lost in the transfer."""
        assert self.gang is not None
        await self.exchange()
        held = self.gang.states[source]
        assert isinstance(held, TrainedState)
        self.state = held

    def _payload(self, item: m.TrainItem) -> str:
        if item.payload not in self._storage.files:
            raise Stopped(f"{item.request.id} cannot be trained on, because its tensors {item.payload} are missing.")
        return self._storage.digest(item.payload)


class Trainee(Protocol):
    """The worker that carries out an order."""

    send: Callable[..., None]
    background: BackgroundWrites

    async def take_time(self, seconds: float) -> None: ...

    def crash_if_due(self, point: CrashPoint) -> None:
        """Raise Crashed if the fault policy crashes the worker at this point."""


_REPLYING: Mapping[type[m.AnyMessage], CrashPoint] = {
    m.GangFormed: CrashPoint.FORMED,
    m.Accumulated: CrashPoint.ACCUMULATED,
    m.Stepped: CrashPoint.STEPPED,
    m.PublishedWeights: CrashPoint.PUBLISHED,
    m.Saved: CrashPoint.RESTORING,
}
"""Crash points of orders that are carried out and not reported."""


async def obey(order: Order, trainer: SimTrainer, pace: Pace, worker: Trainee) -> m.AnyMessage | None:
    """Carry out an order; return its reply, a refusal, or the loss of another rank."""
    try:
        reply = await _carry_out(order, trainer, pace, worker)
    except SpotlightError as problem:
        return failure_reply(problem, trainer.core.epoch)
    if reply is not None and (point := _REPLYING.get(type(reply))) is not None:
        worker.crash_if_due(point)
    return reply


async def _carry_out(order: Order, trainer: SimTrainer, pace: Pace, worker: Trainee) -> m.AnyMessage | None:
    obeying = trainer.core.obey(order)
    try:
        effect = next(obeying)
        while True:
            try:
                completion = await _perform(effect, trainer, pace, worker)
            except SpotlightError as problem:
                effect = obeying.throw(problem)
            else:
                effect = obeying.send(completion)
    except StopIteration as ended:
        reply: m.AnyMessage | None = ended.value
        return reply


async def _perform(effect: Effect, trainer: SimTrainer, pace: Pace, worker: Trainee) -> Any:
    """Spend the effect's time and apply it; the worker may crash in between."""
    match effect:
        case JoinGang(order=formed):
            await trainer.join(formed)
        case ReadPart(order=part):
            return trainer.read(part)
        case AddPart(order=part):
            await worker.take_time(pace.train(part))
            worker.crash_if_due(CrashPoint.ACCUMULATING)
            trainer.add(effect)
        case SendMessage(message=message):
            worker.send(message)
        case TakeStep():
            if trainer.gang is not None:
                await trainer.exchange()
                worker.crash_if_due(CrashPoint.EXCHANGED)
            return trainer.step()
        case WriteWeights():
            # The simulator has no sharded gangs, whose ranks all take part.
            if effect.leads:
                await worker.take_time(pace.publish())
            worker.crash_if_due(CrashPoint.PUBLISHING)
            return trainer.write_weights(effect.weights) if effect.leads else None
        case Settle():
            await worker.background.wait()
        case StartCheckpoint():
            snapshot = trainer.snapshot(effect.order) if effect.leads else b""
            await worker.take_time(pace.snapshot())
            written = _Written(effect, snapshot, trainer.gang, trainer.core.rank)
            worker.background.start(lambda: _write(written, trainer, pace.write(), worker))
        case LoadState(path=path):
            await worker.take_time(pace.restore())
            trainer.load(path)
        case CompareStates():
            await trainer.compare()
        case ReceiveState(source=source):
            await worker.take_time(pace.restore())
            await trainer.receive(source)
    return None


@dataclass(frozen=True)
class _Written:
    """A checkpoint that this rank writes, with the gang and the rank that it had at the order."""

    effect: StartCheckpoint
    snapshot: bytes
    gang: SimGang | None
    rank: int


async def _write(written: _Written, trainer: SimTrainer, seconds: float, worker: Trainee) -> None:
    """Every rank writes its part; rank 0 completes the checkpoint once all parts are there."""
    effect, problem = written.effect, None
    await worker.take_time(seconds)
    worker.crash_if_due(CrashPoint.SAVING)
    try:
        if written.gang is not None:
            await _write_part(written, written.gang, worker)
        if effect.leads:
            trainer.save(effect.order, written.snapshot)
    except (CheckpointAbandoned, Stopped) as error:
        problem = error
    else:
        worker.crash_if_due(CrashPoint.SAVED)
    outcome = effect.outcome(problem)
    if outcome is not None:
        worker.send(outcome)


async def _write_part(written: _Written, gang: SimGang, worker: Trainee) -> None:
    path = written.effect.order.path
    gang.wrote(path, written.rank)
    while written.effect.leads and not gang.is_whole(path):
        if gang.is_broken:
            raise CheckpointAbandoned("the gang broke before all parts were written")
        await worker.take_time(PARTS_S)
