"""What a training role decides, without tensors, threads or sockets; the process and the simulator both drive it.

`obey` is a generator that carries out one order and returns its reply. It yields the effects of `training_effects.py`,
which take time; the driver carries each out and sends its completion back, or throws its error in.

    Train part 0 --> part 1 --> ... --> final part: one optimizer step
      ^  restarts the step and drops what was accumulated

A rank and its gang:

    ALONE --FormGang of several ranks--> MEMBER --RankLost, or an order to train that failed here--> BROKEN
      ^                                    |                                                           |
      `------------- FormGang, which first leaves the earlier gang ------------------------------------'

In BROKEN theta and the optimizer are those of the last step, and the rank waits for the next FormGang. A transfer of
another rank's state that ends half-way leaves no usable state, reported as -1 steps, until the next restore.

Invariant: a step contains every sample of its parts once, and nothing of an abandoned step. A part out of order, a
repeated sample, or a final part whose sample count does not match is refused (tests/conformance/test_training_roles.py
against the real role and the simulated one).
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from spotlight.compute.train.training_effects import (
    AddPart,
    CompareStates,
    Effect,
    JoinGang,
    LoadState,
    Obedience,
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
from spotlight.control.pipeline.staleness import check_versions
from spotlight.core import messages as m
from spotlight.core.errors import Diverged, RankLost, RestartNeeded, Stopped, describe, exit_code_of
from spotlight.core.work import RequestId

TORN = -1
"""Steps of a rank without a usable state."""


class GangSideState(StrEnum):
    """A rank's relation to its gang."""

    ALONE = "alone"
    MEMBER = "member"
    BROKEN = "broken"


class TrainingEngine(Protocol):
    """The trainer and its gang; none of these calls takes long."""

    @property
    def trained_steps(self) -> int:
        """Optimizer steps that theta contains."""

    @property
    def is_sharded(self) -> bool:
        """Whether this rank holds only a share of the weights."""

    @property
    def takes_stale(self) -> bool:
        """Whether samples of the previous version may be trained on."""

    def leave(self) -> None:
        """Leave the gang, if there is one, and drop the update under way."""

    def break_gang(self) -> None:
        """End the exchanges of the other ranks, which must not wait for this one."""

    def drop_update(self) -> None:
        """Forget what was accumulated."""

    def open_store(self, order: m.FormGang) -> str:
        """Address of the store at which the ranks of this gang meet."""


def failure_reply(error: Exception, epoch: int) -> m.GangBroken | m.Failed:
    """Reply to an order that raised: after the loss of another rank this one is well and keeps its state."""
    if isinstance(error, RankLost):
        return m.GangBroken(epoch=epoch, problem=str(error))
    return m.Failed(problem=describe(error), exit_code=exit_code_of(error))


@dataclass
class _Parts:
    """Accumulated parts of the next step."""

    taken: int = 0
    requests: set[RequestId] = field(default_factory=set)


class TrainingCore:
    """One rank's decisions; one order at a time."""

    def __init__(self, engine: TrainingEngine) -> None:
        self._engine = engine
        self.state = GangSideState.ALONE
        self.epoch = 0
        """Gang that was ordered to form last."""
        self.rank = 0
        self._newest_epoch = 0
        """Newest gang that was announced."""
        self._parts: _Parts | None = None
        """Parts of the current step; None if it has not begun."""
        self._saves = 0
        """Checkpoints ordered since the gang was formed."""
        self._is_torn = False
        """Whether a transfer of another rank's state ended half-way."""

    @property
    def steps(self) -> int:
        """Number of optimizer steps that theta contains; -1 if a transfer from another rank ended half-way."""
        return TORN if self._is_torn else self._engine.trained_steps

    @property
    def leads(self) -> bool:
        """Whether this rank publishes weights and reports checkpoints."""
        return self.rank == 0

    def announce(self, epoch: int) -> None:
        """An order to form this gang has arrived; from any thread, while an earlier order may still be carried out."""
        self._newest_epoch = max(self._newest_epoch, epoch)

    def is_replaced(self, epoch: int) -> bool:
        """Whether a newer gang was announced."""
        return epoch < self._newest_epoch

    def obey(self, order: Order) -> Obedience:
        """Carry out an order; returns its reply, or None if another rank or a later message replies.

        Raises RankLost if another rank is gone, RestartNeeded if this process cannot join another gang, and Stopped for
        an order that it refuses.
        """
        try:
            match order:
                case m.FormGang():
                    return (yield from self._form(order))
                case m.Train():
                    return (yield from self._train(order))
                case m.Publish():
                    return (yield from self._publish(order))
                case m.Save():
                    yield from self._save(order)
                    return None
                case m.Restore():
                    return (yield from self._restore(order))
        except RankLost:
            self._drop_update()
            if self.state is GangSideState.MEMBER:
                self.state = GangSideState.BROKEN
            raise

    def _form(self, order: m.FormGang) -> Generator[Effect, Any, m.StoreOpened | m.GangFormed]:
        """Leave the earlier gang and join this one; rank 0 first opens a store, if the order names none."""
        self._engine.leave()
        self._parts, self.state = None, GangSideState.ALONE
        self.epoch, self.rank = order.epoch, order.rank
        if self.is_replaced(order.epoch):
            raise RankLost(f"gang {order.epoch} was replaced by gang {self._newest_epoch}; form that one.")
        if self._engine.is_sharded:
            raise RestartNeeded(
                f"this process holds a share of the weights of an earlier gang, so it cannot join gang {order.epoch}; "
                "restart it and restore the checkpoint."
            )
        if order.ranks == 1:
            # No Restore follows that would wait for the outcome of an earlier checkpoint.
            yield Settle()
        elif not order.store:
            return m.StoreOpened(epoch=order.epoch, store=self._engine.open_store(order))
        self._saves = 0
        yield JoinGang(order)
        if order.ranks > 1:
            self.state = GangSideState.MEMBER
        return m.GangFormed(epoch=order.epoch, steps=TORN if self._engine.is_sharded else self.steps)

    # -- an optimizer step ---------------------------------------------------------------------------------------------

    def _train(self, order: m.Train) -> Generator[Effect, Any, m.Stepped | m.Accumulated]:
        try:
            self._check_order(order)
            self._check_gang(order)
            # Read first: if a file is lost, the accumulated gradient stays as it is.
            read = yield ReadPart(order)
            return (yield from self._add(order, read))
        except RankLost:
            raise
        except Diverged:
            # All ranks raise it.
            self._drop_update()
            raise
        except Exception:
            self._break_gang()
            raise

    def _add(self, order: m.Train, read: Any) -> Generator[Effect, Any, m.Stepped | m.Accumulated]:
        parts, self._parts = self._parts, None
        begins = None
        if order.part == 0 or parts is None:
            parts, begins = _Parts(), len(order.items) if order.samples is None else order.samples
        yield AddPart(order, read, begins)
        parts.taken += 1
        parts.requests.update(item.request.id for item in order.items)
        if not order.is_final:
            self._parts = parts
            return m.Accumulated(step=order.step, part=order.part)
        if self.state is GangSideState.MEMBER:
            yield SendMessage(m.AwaitsRanks(step=order.step, part=order.part))
        taken: StepTaken = yield TakeStep(order)
        return m.Stepped(step=order.step, digest=taken.digest, figures=dict(taken.figures))

    def _check_order(self, order: m.Train) -> None:
        """Refuse an order that would train the wrong weights, lose a sample or count one twice."""
        if order.step != self.steps:
            raise Stopped(
                f"the trainer holds {self.steps} steps but step {order.step} was ordered, so it would train the wrong "
                "weights; restore it to the checkpoint first."
            )
        label = f"part {order.part} of step {order.step}"
        parts = _Parts() if order.part == 0 or self._parts is None else self._parts
        if order.part != parts.taken:
            raise Stopped(
                f"{label} was ordered but the trainer has accumulated {parts.taken} parts of it, so samples would be "
                "missing or counted twice; order the step again from part 0."
            )
        if order.samples is None and not (order.part == 0 and order.is_final):
            raise Stopped(
                f"{label} has no sample count, which the gradient is divided by; set samples in every part of a step."
            )
        requests = [item.request.id for item in order.items]
        if len({*requests, *parts.requests}) < len(requests) + len(parts.requests):
            raise Stopped(
                f"{label} has a sample that the step already has, which would count twice; order the step again from "
                "part 0 with every sample in one part."
            )
        found = len(parts.requests) + len(requests)
        if order.is_final and not found:
            raise Stopped(f"step {order.step} has no sample, so it has no gradient; order it with samples.")
        if order.is_final and order.samples is not None and order.samples != found:
            raise Stopped(
                f"{label} is the last one and gives the step {order.samples} samples, but its parts have {found}, so "
                "some were lost on the way; order the step again from part 0."
            )
        check_versions([item.request.sample for item in order.items], order.iteration, self._engine.takes_stale)

    def _check_gang(self, order: m.Train | m.Restore) -> None:
        if self.state is GangSideState.BROKEN:
            raise RankLost(f"step {order.step} needs gang {self.epoch}, which is broken; form the next one.")

    def _drop_update(self) -> None:
        self._parts = None
        self._engine.drop_update()

    def _break_gang(self) -> None:
        if self.state is GangSideState.MEMBER:
            self.state = GangSideState.BROKEN
            self._engine.break_gang()

    # -- weights and checkpoints ---------------------------------------------------------------------------------------

    def _publish(self, order: m.Publish) -> Generator[Effect, Any, m.PublishedWeights | None]:
        publication = WriteWeights(order, self.leads)
        written: WeightsWritten | None = yield publication
        if written is None:
            return None
        digest, size = written.digest, written.size
        return m.PublishedWeights(weights=publication.weights, digest=digest, size=size, step=self.steps)

    def _save(self, order: m.Save) -> Generator[Effect, Any, None]:
        yield Settle()
        number, self._saves = self._saves, self._saves + 1
        yield StartCheckpoint(order, number, self.leads)

    def _restore(self, order: m.Restore) -> Generator[Effect, Any, m.Saved]:
        yield Settle()
        self._parts = None
        if order.source is not None:
            yield from self._receive(order, order.source)
        elif self.steps and not order.path:
            raise Stopped(f"the trainer has taken {self.steps} steps and cannot go back to none; restart it.")
        else:
            yield LoadState(order.path)
            self._is_torn = False
        if self.steps != order.step:
            raise Stopped(
                f"the checkpoint {order.path} contains {self.steps} steps but {order.step} were ordered, so training "
                "would continue from the wrong weights; restore the checkpoint of that step."
            )
        return m.Saved(step=order.step, path=order.path, restored=True)

    def _receive(self, order: m.Restore, source: int) -> Generator[Effect, Any, None]:
        """Take the state of rank `source`; if that fails half-way, this rank holds no usable state."""
        self._check_gang(order)
        if self.state is GangSideState.ALONE:
            raise Stopped(
                f"the state of rank {source} cannot be received by a rank outside of a gang; form a gang first."
            )
        if self._engine.is_sharded:
            raise Stopped(
                f"the state of rank {source} cannot be received, because each rank holds other weights in a sharded "
                "gang; restore a checkpoint."
            )
        is_source = self.rank == source
        if is_source and self._is_torn:
            self._break_gang()
            raise Stopped(f"rank {source} holds no usable state to send; restore a checkpoint.")
        compared = yield CompareStates(source)
        self._is_torn = not is_source
        yield ReceiveState(source, compared)
        self._is_torn = False
