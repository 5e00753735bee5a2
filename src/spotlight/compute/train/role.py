"""The training role of a worker: `TrainingCore` decides, and this class carries its effects out on the trainer.

A checkpoint holds the state at its order. A thread writes it while other orders are executed, and reports when it is
durable or has failed. One checkpoint is written at a time; a restore waits until its outcome is reported.

As a rank of a gang it trains its share of every part; the gradients of all ranks are summed before the optimizer step,
which every rank then takes alike. An exchange that fails raises RankLost: the update is dropped, theta and the
optimizer are those of the last step, and the role waits for the next `form` (tests/processes/test_gang_role.py).
"""

import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from spotlight.compute.models.adapter import Adapter
from spotlight.compute.parallel.gang_group import GangLinks, check_transport, form_gang, open_store
from spotlight.compute.train import checkpoint
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.part import PartPlan
from spotlight.compute.train.part_loading import PartLoader
from spotlight.compute.train.sharded import abort_world, exchanging, holds_shares, sharded_fingerprint, whole
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.train.training_core import TrainingCore
from spotlight.compute.train.training_effects import (
    AddPart,
    CheckpointAbandoned,
    CompareStates,
    Effect,
    JoinGang,
    LoadState,
    ReadPart,
    ReceiveState,
    SendMessage,
    Settle,
    StartCheckpoint,
    StepTaken,
    TakeStep,
    WeightsWritten,
    WriteWeights,
    drive,
)
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.compute.weights.digest import fingerprint
from spotlight.compute.weights.store import NodeStore
from spotlight.core import messages as m
from spotlight.core.work import Policy

Write: TypeAlias = Callable[[checkpoint.TrainerSnapshot, Path], None]
ReadTensors: TypeAlias = tuple[PartPlan, Sequence[Experience | None]]


class TrainingRole:
    """Executes the controller's training orders."""

    def __init__(
        self,
        trainer: Trainer,
        adapter: Adapter,
        base_digest: str,
        run_folder: Path,
        send: Callable[[m.AnyMessage], None],
        write: Write = checkpoint.write,
        links: GangLinks | None = None,
    ) -> None:
        """`send` is called from the thread that writes checkpoints."""
        self._trainer = trainer
        self._adapter = adapter
        self._base_digest = base_digest
        self._run_folder = run_folder
        self._store = NodeStore(run_folder / "weights")
        self._loader = PartLoader(adapter, run_folder)
        self._links = links or GangLinks()
        self._send = send
        self._write = write
        self._core = TrainingCore(self)
        self._writing: threading.Thread | None = None
        self._meeting_place: tuple[Any, str] | None = None
        """Store that this rank serves, and its address."""

    # -- orders --------------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Number of optimizer steps that theta contains; -1 if a transfer from another rank ended half-way."""
        return self._core.steps

    @property
    def rolls_out(self) -> bool:
        """Whether this rank's model can also roll out: with a share of the weights every forward needs all ranks."""
        return not self.is_sharded

    def form(self, order: m.FormGang) -> m.AnyMessage:
        """Leave the earlier gang and join this one; rank 0 first opens a store, if the order names none.

        Raises RankLost if another rank does not come, and RestartNeeded if this process holds a share of the weights
        of an earlier gang (`train.parallel: sharded`): it must exit and start anew.
        """
        reply = drive(self._core.obey(order), self._perform)
        assert reply is not None
        return reply

    def obey(self, order: m.Train | m.Publish | m.Save | m.Restore) -> m.AnyMessage | None:
        """Execute an order and return its reply; None for a checkpoint, which is reported when it is durable."""
        return drive(self._core.obey(order), self._perform)

    def abort(self, epoch: int) -> None:
        """End the exchange or the forming of a gang before this one, here and at the other ranks, from any thread."""
        self._core.announce(epoch)
        gang = self._trainer.gang
        if gang is not None and gang.epoch < epoch:
            gang.abort()
        if self.is_sharded:
            abort_world()

    def settle(self) -> None:
        """Wait until the checkpoint under way is reported."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None

    def state(self, policy: Policy) -> Mapping[str, Tensor]:
        """The weights that it would publish now, or this rank's share of them; later steps change them in place."""
        sets, which = self._trainer.sets, WeightSet.EMA if policy is Policy.AVERAGE else self._trainer.behaviour
        return sets[which] if which is not None else {name: p.data for name, p in sets.theta.items()}

    # -- engine of the core --------------------------------------------------------------------------------------------

    @property
    def trained_steps(self) -> int:
        return int(self._trainer.updates)

    @property
    def is_sharded(self) -> bool:
        return self._trainer.is_sharded

    @property
    def takes_stale(self) -> bool:
        return self._trainer.keeps_before

    def leave(self) -> None:
        self.break_gang()
        self._trainer.join(None)

    def break_gang(self) -> None:
        gang = self._trainer.gang
        if gang is not None:
            gang.drop()

    def drop_update(self) -> None:
        self._trainer.drop_update()

    def open_store(self, order: m.FormGang) -> str:
        check_transport(self._links.transport)
        if self._meeting_place is None:
            self._meeting_place = open_store(self._links.host, self._links.port)
        return self._meeting_place[1]

    # -- effects of the core -------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case JoinGang(order=order):
                self._join(order)
            case ReadPart(order=part):
                return self._read(part)
            case AddPart(read=read, begins=samples):
                self._add(read, samples)
            case SendMessage(message=message):
                self._send(message)
            case TakeStep(order=part):
                return self._step(part)
            case WriteWeights():
                return self._publish(effect)
            case Settle():
                self.settle()
            case StartCheckpoint():
                self._save(effect)
            case LoadState(path=path):
                if path:
                    checkpoint.restore(self._trainer, self._run_folder / path)
            case CompareStates(source=source):
                assert self._trainer.gang is not None
                return checkpoint.moments_of(self._trainer, self._trainer.gang, source)
            case ReceiveState(source=source, compared=moments):
                assert self._trainer.gang is not None
                checkpoint.send_state(self._trainer, self._trainer.gang, source, moments)
        return None

    def _join(self, order: m.FormGang) -> None:
        if order.rank or order.ranks == 1:
            self._meeting_place = None
        if order.ranks == 1:
            return
        check_transport(self._links.transport)
        place = (order.store, order.epoch, order.rank, order.ranks)
        gang = form_gang(*place, self._links, lambda: self._core.is_replaced(order.epoch))
        try:
            self._trainer.join(gang, self._links.even_shares)
        except BaseException:
            gang.drop()
            raise

    def _read(self, order: m.Train) -> ReadTensors:
        groups = self._loader.groups(order.items)
        described = [
            self._trainer.group([item.request.sample for item in items], [item.kept for item in items])
            for items in groups.items
        ]
        plan = self._trainer.plan(described, order.iteration)
        return plan, self._loader.experiences(groups, plan, order.iteration)

    def _add(self, read: ReadTensors, begins: int | None) -> None:
        plan, experiences = read
        if begins is not None:
            self._trainer.begin(begins)
        self._trainer.add_planned(plan.renumbered(), experiences)

    def _step(self, order: m.Train) -> StepTaken:
        report = self._trainer.finish(order.iteration)
        if order.last:
            self._trainer.end_iteration()
        theta = {name: parameter.data for name, parameter in self._trainer.sets.theta.items()}
        gang = self._trainer.gang
        digest = sharded_fingerprint(theta, gang) if gang is not None and holds_shares(theta) else fingerprint(theta)
        figures = {"loss": report.loss, "grad_norm": report.grad_norm, "rows": float(report.rows), **report.figures}
        return StepTaken(digest, figures)

    def _publish(self, effect: WriteWeights) -> WeightsWritten | None:
        state = self.state(effect.weights.policy)
        if holds_shares(state):
            # All ranks take part; one tensor at a time, of which rank 0 keeps a copy on the host.
            state = self._gathered(state, effect.leads)
        if not effect.leads:
            return None
        stored = self._store.publish(effect.weights, self._adapter.family, state, self._base_digest)
        return WeightsWritten(stored.fingerprint, stored.size)

    def _gathered(self, state: Mapping[str, Tensor], leads: bool) -> dict[str, Tensor]:
        """Whole tensors, on the host of rank 0; empty on the other ranks."""
        gathered = {}
        assert self._trainer.gang is not None
        with exchanging(self._trainer.gang, "a publication"):
            for name in sorted(state):
                tensor = whole(state[name])
                if leads:
                    gathered[name] = tensor.cpu()
        return gathered

    def _save(self, effect: StartCheckpoint) -> None:
        taken = checkpoint.snapshot(self._trainer, self._base_digest, effect.number)
        # A daemon thread: an exiting process leaves a half-written checkpoint under its scratch name.
        self._writing = threading.Thread(target=self._write_out, args=(taken, effect), name="checkpoint", daemon=True)
        self._writing.start()

    def _write_out(self, taken: checkpoint.TrainerSnapshot, effect: StartCheckpoint) -> None:
        error: Exception | None = None
        try:
            self._write(taken, self._run_folder / effect.order.path)
        except CheckpointAbandoned as abandoned:
            sys.stderr.write(f"{effect.order.path} is abandoned: {abandoned}\n")
            error = abandoned
        except Exception as failure:
            traceback.print_exc()
            error = failure
        outcome = effect.outcome(error)
        if outcome is not None:
            self._send(outcome)
