"""The trainer: accumulate gradients over rows, step once, let the weight sets follow.

Invariant: the gradient of an update is the sum over its rows divided by the number of rows that its samples have,
kept or not; neither the micro-batch nor the order of rows changes it (tests/property/test_trainer_property.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spotlight.compute.models.adapter import Adapter
from spotlight.compute.train.config import AlgorithmConfig, NftConfig, TrainConfig
from spotlight.compute.train.experience import Experience, Row, kept_rows
from spotlight.compute.train.lora import select_trainable
from spotlight.compute.train.objectives import objective
from spotlight.compute.train.weight_sets import WeightSet, WeightSets
from spotlight.control.updates import groups_by_update
from spotlight.core.errors import Diverged


@dataclass(frozen=True)
class UpdateReport:
    """One optimizer step, for the log; figures are means over its rows."""

    loss: float
    grad_norm: float
    rows: int
    figures: Mapping[str, float]


class Trainer:
    """Owns theta, its copies and the optimizer."""

    def __init__(self, adapter: Adapter, train: TrainConfig, algorithm: AlgorithmConfig, run_seed: int) -> None:
        self.adapter = adapter
        self.train_config = train
        self.algorithm = algorithm
        self.run_seed = run_seed
        self._objective = objective(algorithm, run_seed)
        select_trainable(adapter.transformer, train.lora, adapter.lora_targets, run_seed)
        if train.gradient_checkpointing:
            adapter.transformer.enable_gradient_checkpointing()  # type: ignore[operator]
        self.sets = WeightSets(adapter.transformer, {WeightSet.EMA, *self._objective.weight_sets})
        self.optimizer = torch.optim.AdamW(
            self.sets.theta.values(),
            lr=train.lr,
            betas=train.betas,
            eps=train.optimizer_eps,
            weight_decay=train.weight_decay,
        )

    @property
    def behaviour(self) -> WeightSet | None:
        """The set that rolls out: NFT publishes `old`, Flow-GRPO theta itself."""
        return WeightSet.OLD if isinstance(self.algorithm, NftConfig) else None

    def run_iteration(self, experience: Experience, groups: Sequence[Sequence[int]]) -> list[UpdateReport]:
        """All updates of one iteration over disjoint groups of sample indices."""
        updates = groups_by_update(groups, self.train_config.updates_per_iteration, self.run_seed, experience.iteration)
        reports = [self.update(experience, sorted(sample for group in part for sample in group)) for part in updates]
        self.end_iteration(experience.iteration)
        return reports

    def end_iteration(self, iteration: int) -> None:
        """After its last update: the behaviour policy follows."""
        if isinstance(self.algorithm, NftConfig):
            self.sets.follow(WeightSet.OLD, self.algorithm.old_decay_at(iteration))

    def update(self, experience: Experience, samples: Sequence[int]) -> UpdateReport:
        """One optimizer step over these samples."""
        places = self._objective.places(experience)
        rows = kept_rows(experience, samples, places)
        self.optimizer.zero_grad(set_to_none=True)
        loss, figures = self.accumulate(experience, rows, denominator=len(samples) * places)
        norm = torch.nn.utils.clip_grad_norm_(self.sets.theta.values(), self.train_config.max_grad_norm)
        if not torch.isfinite(norm):
            raise Diverged(
                f"the gradient norm of iteration {experience.iteration} is {float(norm)}, so a step would destroy the "
                "weights and was not taken; check the reward or lower train.lr, and run again."
            )
        self.optimizer.step()
        self.sets.follow(WeightSet.EMA, self.train_config.ema_decay)
        return UpdateReport(loss, float(norm), len(rows), figures)

    def accumulate(
        self, experience: Experience, rows: Sequence[Row], denominator: int
    ) -> tuple[float, dict[str, float]]:
        """Add the gradient of these rows, micro-batch by micro-batch."""
        size = self.train_config.micro_batch
        total = 0.0
        figures: dict[str, Tensor] = {}
        for start in range(0, len(rows), size):
            part = self._objective.rows(self.adapter, self.sets, experience, rows[start : start + size])
            loss = part.loss_B.sum() / denominator
            loss.backward()
            total += float(loss.detach())
            for name, value_B in part.figures.items():
                figures[name] = figures.get(name, torch.zeros(())) + value_B.detach().sum().cpu()
        return total, {name: float(value) / max(1, len(rows)) for name, value in figures.items()}
