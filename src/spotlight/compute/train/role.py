"""The training role of a worker: orders in, replies out; one optimizer step or publication at a time.

    Train part 0 --> part 1 --> ... --> final part: one optimizer step
      ^  restarts the step and drops what was accumulated

A checkpoint holds the state at its order. A thread writes it while other orders are executed, and reports when it is
durable or has failed. One checkpoint is written at a time; a restore waits until its outcome is reported.

As a rank of a gang it trains its share of every part; the gradients of all ranks are summed before the optimizer step,
which every rank then takes alike. An exchange that fails raises RankLost: the update is dropped, theta and the
optimizer are those of the last step, and the role waits for the next `form` (tests/processes/test_gang_role.py).

Invariant: a step contains every sample of its parts once, and nothing of an abandoned step. A part out of order, a
repeated sample, or a final part whose sample count does not match is refused (tests/unit/test_training_role.py).
"""

import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from spotlight.compute.models.adapter import Adapter
from spotlight.compute.parallel.gang_group import GangLinks, RankLost, check_transport, form_gang, open_store
from spotlight.compute.train import checkpoint
from spotlight.compute.train.clip_watch import check_versions
from spotlight.compute.train.joint_writing import CheckpointAbandoned
from spotlight.compute.train.part_loading import PartLoader
from spotlight.compute.train.sharded import (
    RestartNeeded,
    abort_world,
    exchanging,
    holds_shares,
    sharded_fingerprint,
    whole,
)
from spotlight.compute.train.trainer import Trainer, UpdateReport
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.compute.weights.digest import fingerprint
from spotlight.compute.weights.store import NodeStore
from spotlight.core import errors
from spotlight.core import messages as m
from spotlight.core.errors import Diverged, Stopped
from spotlight.core.work import Policy, RequestId, WeightsId

Write: TypeAlias = Callable[[checkpoint.TrainerSnapshot, Path], None]


@dataclass
class _Parts:
    """Accumulated parts of the next step."""

    taken: int = 0
    requests: set[RequestId] = field(default_factory=set)


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
        self._writing: threading.Thread | None = None
        self._parts: _Parts | None = None
        """Parts of the current step; None if it has not begun."""
        self._meeting_place: tuple[Any, str] | None = None
        """Store that this rank serves, and its address."""
        self._newest_epoch = 0
        """Newest gang that was ordered to form; set by the thread that reads messages."""
        self._saves = 0
        """Checkpoints ordered since the gang was formed."""
        self._is_torn = False
        """Whether a transfer of another rank's state ended half-way."""

    @property
    def _leads(self) -> bool:
        return self._trainer.gang is None or self._trainer.gang.rank == 0

    @property
    def steps(self) -> int:
        """Number of optimizer steps that theta contains; -1 if a transfer from another rank ended half-way."""
        return -1 if self._is_torn else int(self._trainer.updates)

    def form(self, order: m.FormGang) -> m.StoreOpened | m.GangFormed:
        """Leave the earlier gang and join this one; rank 0 first opens a store, if the order names none.

        Raises RankLost if another rank does not come, and RestartNeeded if this process holds a share of the weights
        of an earlier gang (`train.parallel: sharded`): it must exit and start anew.
        """
        self._leave()
        if order.epoch < self._newest_epoch:
            raise RankLost(f"gang {order.epoch} was replaced by gang {self._newest_epoch}; form that one.")
        if self._trainer.is_sharded:
            raise RestartNeeded(
                f"this process holds a share of the weights of an earlier gang, so it cannot join gang {order.epoch}; "
                "restart it and restore the checkpoint."
            )
        if order.ranks == 1:
            # No Restore follows that would wait for the outcome of an earlier checkpoint.
            self.settle()
            self._meeting_place = None
            return m.GangFormed(epoch=order.epoch, steps=self.steps)
        check_transport(self._links.transport)
        if not order.store:
            if self._meeting_place is None:
                self._meeting_place = open_store(self._links.host, self._links.port)
            return m.StoreOpened(epoch=order.epoch, store=self._meeting_place[1])
        self._saves = 0
        if order.rank:
            self._meeting_place = None
        place = (order.store, order.epoch, order.rank, order.ranks)
        gang = form_gang(*place, self._links, lambda: order.epoch < self._newest_epoch)
        try:
            self._trainer.join(gang, self._links.even_shares)
        except BaseException:
            gang.drop()
            raise
        return m.GangFormed(epoch=order.epoch, steps=-1 if self._trainer.is_sharded else self.steps)

    @property
    def rolls_out(self) -> bool:
        """Whether this rank's model can also roll out: with a share of the weights every forward needs all ranks."""
        return not self._trainer.is_sharded

    def abort(self, epoch: int) -> None:
        """End the exchange or the forming of a gang before this one, here and at the other ranks, from any thread."""
        self._newest_epoch = max(self._newest_epoch, epoch)
        gang = self._trainer.gang
        if gang is not None and gang.epoch < epoch:
            gang.abort()
        if self._trainer.is_sharded:
            abort_world()

    def _leave(self) -> None:
        gang = self._trainer.gang
        if gang is not None:
            gang.drop()
        self._parts = None
        self._trainer.join(None)

    def obey(self, order: m.Train | m.Publish | m.Save | m.Restore) -> m.AnyMessage | None:
        """Execute an order and return its reply; None for a checkpoint, which is reported when it is durable."""
        match order:
            case m.Train():
                return self._train(order)
            case m.Publish():
                return self._publish(order.weights[0])
            case m.Save():
                self._save(order)
                return None
            case m.Restore():
                return self._restore(order)

    def _train(self, order: m.Train) -> m.Stepped | m.Accumulated:
        gang = self._trainer.gang
        try:
            self._check_order(order)
            return self._trained(order)
        except (RankLost, Diverged):
            # All ranks raise these.
            self._drop_update()
            raise
        except BaseException:
            # The other ranks must not wait for this one.
            if gang is not None:
                gang.drop()
            raise

    def _trained(self, order: m.Train) -> m.Stepped | m.Accumulated:
        # Read first: if a file is lost, the accumulated gradient stays as it is.
        groups = self._loader.groups(order.items)
        described = [
            self._trainer.group([item.request.sample for item in items], [item.kept for item in items])
            for items in groups.items
        ]
        plan = self._trainer.plan(described, order.iteration)
        experiences = self._loader.experiences(groups, plan, order.iteration)
        samples = len(order.items) if order.samples is None else order.samples
        parts, self._parts = self._parts, None
        if order.part == 0 or parts is None:
            self._trainer.begin(samples)
            parts = _Parts()
        self._trainer.add_planned(plan.renumbered(), experiences)
        parts.taken += 1
        parts.requests.update(item.request.id for item in order.items)
        if not order.is_final:
            self._parts = parts
            return m.Accumulated(step=order.step, part=order.part)
        if self._trainer.gang is not None:
            self._send(m.AwaitsRanks(step=order.step, part=order.part))
        return self._step_reply(order, self._trainer.finish(order.iteration))

    def _drop_update(self) -> None:
        self._parts = None
        self._trainer.drop_update()

    def _step_reply(self, order: m.Train, report: UpdateReport) -> m.Stepped:
        if order.last:
            self._trainer.end_iteration()
        theta = {name: parameter.data for name, parameter in self._trainer.sets.theta.items()}
        gang = self._trainer.gang
        digest = sharded_fingerprint(theta, gang) if gang is not None and holds_shares(theta) else fingerprint(theta)
        figures = {"loss": report.loss, "grad_norm": report.grad_norm, "rows": float(report.rows), **report.figures}
        return m.Stepped(step=order.step, digest=digest, figures=figures)

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
        check_versions([item.request.sample for item in order.items], order.iteration, self._trainer.keeps_before)

    def _publish(self, weights: WeightsId) -> m.PublishedWeights | None:
        state = self.state(weights.policy)
        if holds_shares(state):
            # All ranks take part; one tensor at a time, of which rank 0 keeps a copy on the host.
            state = self._gathered(state)
        if not self._leads:
            return None
        stored = self._store.publish(weights, self._adapter.family, state, self._base_digest)
        return m.PublishedWeights(weights=weights, digest=stored.fingerprint, size=stored.size, step=self.steps)

    def _gathered(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors, on the host of rank 0; empty on the other ranks."""
        gathered = {}
        assert self._trainer.gang is not None
        with exchanging(self._trainer.gang, "a publication"):
            for name in sorted(state):
                tensor = whole(state[name])
                if self._leads:
                    gathered[name] = tensor.cpu()
        return gathered

    def state(self, policy: Policy) -> Mapping[str, Tensor]:
        """The weights that it would publish now, or this rank's share of them; later steps change them in place."""
        sets, which = self._trainer.sets, WeightSet.EMA if policy is Policy.AVERAGE else self._trainer.behaviour
        return sets[which] if which is not None else {name: p.data for name, p in sets.theta.items()}

    def _save(self, order: m.Save) -> None:
        self.settle()
        taken = checkpoint.snapshot(self._trainer, self._base_digest, self._saves)
        self._saves += 1
        # A daemon thread: an exiting process leaves a half-written checkpoint under its scratch name.
        self._writing = threading.Thread(target=self._write_out, args=(taken, order), name="checkpoint", daemon=True)
        self._writing.start()

    def settle(self) -> None:
        """Wait until the checkpoint under way is reported."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None

    def _write_out(self, taken: checkpoint.TrainerSnapshot, order: m.Save) -> None:
        try:
            self._write(taken, self._run_folder / order.path)
        except CheckpointAbandoned as error:
            # The controller orders the next one after the gang that follows.
            sys.stderr.write(f"{order.path} is abandoned: {error}\n")
        except Exception as error:
            traceback.print_exc()
            self._send(m.Failed(problem=errors.describe(error), exit_code=errors.exit_code_of(error)))
        else:
            if taken.writer is None or taken.writer.rank == 0:
                self._send(m.Saved(step=order.step, path=order.path))

    def _restore(self, order: m.Restore) -> m.Saved:
        self.settle()
        self._parts = None
        if order.source is not None:
            self._receive(order.source)
        elif order.path:
            checkpoint.restore(self._trainer, self._run_folder / order.path)
            self._is_torn = False
        elif self.steps:
            raise Stopped(f"the trainer has taken {self.steps} steps and cannot go back to none; restart it.")
        if self.steps != order.step:
            raise Stopped(
                f"the checkpoint {order.path} contains {self.steps} steps but {order.step} were ordered, so training "
                "would continue from the wrong weights; restore the checkpoint of that step."
            )
        return m.Saved(step=order.step, path=order.path, restored=True)

    def _receive(self, source: int) -> None:
        """Take the state of rank `source`; if that fails half-way, this rank holds no usable state."""
        gang = self._trainer.gang
        if gang is None:
            raise Stopped(
                f"the state of rank {source} cannot be received by a rank outside of a gang; form a gang first."
            )
        if self._trainer.is_sharded:
            raise Stopped(
                f"the state of rank {source} cannot be received, because each rank holds other weights in a sharded "
                "gang; restore a checkpoint."
            )
        is_source = gang.rank == source
        if is_source and self._is_torn:
            gang.drop()
            raise Stopped(f"rank {source} holds no usable state to send; restore a checkpoint.")
        moments = checkpoint.moments_of(self._trainer, gang, source)
        self._is_torn = not is_source
        checkpoint.send_state(self._trainer, gang, source, moments)
        self._is_torn = False
