"""The training role of a worker: orders in, replies out; one optimizer step, publication or checkpoint at a time."""

from pathlib import Path

import torch

from spotlight.compute.models.adapter import Adapter
from spotlight.compute.rollout.flight import join_payloads
from spotlight.compute.train import checkpoint
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.compute.weights.digest import fingerprint
from spotlight.compute.weights.store import NodeStore
from spotlight.core import messages as m
from spotlight.core.errors import Stopped
from spotlight.core.work import Policy, WeightsId


class TrainingRole:
    """A trainer that follows orders; `steps` counts the optimizer steps that theta contains."""

    def __init__(self, trainer: Trainer, adapter: Adapter, base_digest: str, run_folder: Path) -> None:
        self._trainer = trainer
        self._adapter = adapter
        self._base_digest = base_digest
        self._run_folder = run_folder
        self._store = NodeStore(run_folder / "weights")
        self.steps = 0

    def obey(self, order: m.Train | m.Publish | m.Save | m.Restore) -> m.AnyMessage:
        match order:
            case m.Train():
                return self._train(order)
            case m.Publish():
                return self._publish(order.weights[0])
            case m.Save():
                checkpoint.save(self._trainer, self._run_folder / order.path)
                return m.Saved(step=order.step, path=order.path)
            case m.Restore():
                return self._restore(order)

    def _train(self, order: m.Train) -> m.Stepped:
        if order.step != self.steps:
            raise Stopped(
                f"the trainer holds {self.steps} steps but was asked for step {order.step}, so it would train the "
                "wrong weights; restore it to the checkpoint first."
            )
        experience = self._experience(order)
        report = self._trainer.update(experience, range(len(experience)))
        if order.last:
            self._trainer.end_iteration(order.iteration)
        self.steps += 1
        theta = {name: parameter.data for name, parameter in self._trainer.sets.theta.items()}
        figures = {"loss": report.loss, "grad_norm": report.grad_norm, "rows": float(report.rows), **report.figures}
        return m.Stepped(step=order.step, digest=fingerprint(theta), figures=figures)

    def _experience(self, order: m.Train) -> Experience:
        device = self._adapter.device
        requests = [item.request for item in order.items]
        rollout = join_payloads(requests, [self._run_folder / item.payload for item in order.items], device)
        cond = self._adapter.collate(self._adapter.encode([item.prompt for item in order.items]))
        uncond = None
        if requests[0].sample.sampling.guidance != 1.0:
            uncond = self._adapter.collate([self._adapter.unconditional()] * len(requests))
        return Experience(
            rollout=rollout,
            cond=cond,
            uncond=uncond,
            advantage_B=torch.tensor([item.advantage for item in order.items], device=device),
            kept_B=torch.tensor([item.kept for item in order.items], device=device),
            iteration=order.iteration,
        )

    def _publish(self, weights: WeightsId) -> m.PublishedWeights:
        which = WeightSet.EMA if weights.policy is Policy.AVERAGE else self._trainer.behaviour
        sets = self._trainer.sets
        state = sets[which] if which is not None else {name: p.data for name, p in sets.theta.items()}
        stored = self._store.publish(weights, self._adapter.family, state, self._base_digest)
        return m.PublishedWeights(weights=weights, digest=stored.digest, size=stored.size, step=self.steps)

    def _restore(self, order: m.Restore) -> m.Saved:
        if order.path:
            checkpoint.restore(self._trainer, self._run_folder / order.path)
        elif self.steps:
            raise Stopped(f"the trainer has taken {self.steps} steps and cannot go back to none; restart it.")
        self.steps = order.step
        return m.Saved(step=order.step, path=order.path, restored=True)
