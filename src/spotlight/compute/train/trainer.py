"""The trainer: accumulate gradients over rows, take one optimizer step, update the weight sets.

    begin(samples) --add(first part)--> add(second part) ... --finish--> one optimizer step

Work that leaves theta and its gradients alone may run between two parts: rollouts with other weights, a publication, a
checkpoint.

Invariant: the gradient of an update is the sum over its rows divided by the number of rows of its samples, kept or not.
It does not depend on the micro-batch, the order of rows or the division into parts
(tests/property/test_trainer_property.py, tests/property/test_pipeline_gradient_property.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spotlight.compute.memory.choices import TrainingLimits, recomputed_blocks
from spotlight.compute.meter import DeviceMeter
from spotlight.compute.models.adapter import Adapter
from spotlight.compute.train.batch_search import BatchSearch, FixedRows, RowsPerForward
from spotlight.compute.train.clip_watch import check_versions
from spotlight.compute.train.config import AUTO, AlgorithmConfig, NftConfig, TrainConfig
from spotlight.compute.train.experience import Experience, kept_pairs
from spotlight.compute.train.lora import select_trainable
from spotlight.compute.train.objectives import LossRows, objective
from spotlight.compute.train.recomputation import blocks_of, recompute_first
from spotlight.compute.train.weight_sets import WeightSet, WeightSets
from spotlight.control.pipeline.gap import groups_by_update
from spotlight.control.pipeline.tsp import Pair, runs_of
from spotlight.core.errors import Diverged


@dataclass
class UpdateTally:
    """Sums over the rows of an update, across its batches and parts."""

    loss: float = 0.0
    rows: int = 0
    _sums: dict[str, Tensor] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, loss: Tensor, part: LossRows) -> None:
        """Add a batch with its share of the update's loss."""
        self.loss += float(loss.detach())
        self.rows += len(part.loss_B)
        for name, values in part.figures.items():
            self._sums[name] = self._sums.get(name, torch.zeros(())) + values.detach().sum().cpu()
            self._counts[name] = self._counts.get(name, 0) + len(values)

    def means(self) -> dict[str, float]:
        """Means of the figures that have at least one row."""
        return {name: float(total) / self._counts[name] for name, total in self._sums.items() if self._counts[name]}


@dataclass(frozen=True)
class UpdateReport:
    """Report of one optimizer step, for the log; figures are means over its rows."""

    loss: float
    grad_norm: float
    rows: int
    figures: Mapping[str, float]


@dataclass
class _OpenUpdate:
    """An update between `begin` and `finish`."""

    samples: int
    """Number of samples announced."""
    denominator: float | None
    """Provisional divisor of the gradient: the announced number of rows, or an estimate from the first part."""
    places: int = 0
    """Number of rows of the samples added so far, kept or not: the final divisor."""
    tally: UpdateTally = field(default_factory=UpdateTally)


class Trainer:
    """Owns theta, its copies and the optimizer."""

    def __init__(
        self,
        adapter: Adapter,
        train: TrainConfig,
        algorithm: AlgorithmConfig,
        run_seed: int,
        keeps_before: bool = False,
        limits: TrainingLimits | None = None,
    ) -> None:
        """`keeps_before`: hold the weights that stale samples are compared with, and accept such samples. `limits` are
        what the memory plan allows; None: `auto` recomputes all blocks on a GPU, and searches rows without a bound."""
        self.adapter = adapter
        self.train_config = train
        self.algorithm = algorithm
        self.run_seed = run_seed
        self.keeps_before = keeps_before
        self._objective = objective(algorithm, run_seed, keeps_before, adapter.device.type == "cuda")
        select_trainable(adapter.transformer, train.lora, adapter.lora_targets, run_seed)
        recompute_first(adapter.transformer, self._recomputed(limits))
        self.sets = WeightSets(adapter.transformer, {WeightSet.EMA, *self._objective.weight_sets})
        self.optimizer = torch.optim.AdamW(
            self.sets.theta.values(),
            lr=train.lr,
            betas=train.betas,
            eps=train.optimizer_eps,
            weight_decay=train.weight_decay,
        )
        self.updates = torch.zeros((), dtype=torch.int64)
        """Number of optimizer steps that theta contains; a tensor, so that a checkpoint restores it in place."""
        most, first = (None, 1) if limits is None else (limits.most, limits.first)
        self._search = BatchSearch(self.sets.theta.values(), DeviceMeter(adapter.device), most, first)
        self._underway: _OpenUpdate | None = None

    @property
    def behaviour(self) -> WeightSet | None:
        """The weight set for rollouts: `old` for NFT, theta (None) for Flow-GRPO."""
        return WeightSet.OLD if isinstance(self.algorithm, NftConfig) else None

    @property
    def objective_state(self) -> Mapping[str, Tensor]:
        """State of the objective beside weights and moments; part of a checkpoint."""
        return self._objective.state

    def run_iteration(self, experience: Experience, groups: Sequence[Sequence[int]]) -> list[UpdateReport]:
        """Run all updates of one iteration over disjoint groups of sample indices."""
        updates = groups_by_update(groups, self.train_config.updates_per_iteration, self.run_seed, experience.iteration)
        reports = [self.update(experience, sorted(sample for group in part for sample in group)) for part in updates]
        self.end_iteration()
        return reports

    def end_iteration(self) -> None:
        """Update the behaviour policy after the last update of an iteration."""
        if WeightSet.BEFORE in self.sets.names:
            self.sets.copy(WeightSet.OLD, WeightSet.BEFORE)
        if isinstance(self.algorithm, NftConfig):
            self.sets.follow(WeightSet.OLD, self.algorithm.old_decay_at(int(self.updates)))
        if WeightSet.START in self.sets.names:
            self.sets.follow(WeightSet.START, 0.0)
        self._objective.after_iteration()

    def update(self, experience: Experience, samples: Sequence[int]) -> UpdateReport:
        """Take one optimizer step over these samples."""
        self.begin(len(samples))
        self.add(experience, samples)
        return self.finish(experience.iteration)

    def begin(self, samples: int, places: int | None = None) -> None:
        """Begin an update over `samples` samples in one or more parts; an update under way is dropped.

        `places` is the number of rows of all samples. Without it, it is estimated from the first part, and `finish`
        rescales the gradient if the estimate or the announced number of samples was wrong.
        """
        self.optimizer.zero_grad(set_to_none=True)
        self._underway = _OpenUpdate(samples, denominator=places)

    def add(self, experience: Experience, samples: Sequence[int]) -> None:
        """Add the gradient of these samples; a part that fails half-way drops the update."""
        underway = self._open_update()
        if self.keeps_before:
            check_versions([experience.rollout.samples[s] for s in samples], experience.iteration, takes_stale=True)
        counts = self._objective.places(experience)
        places = sum(counts[sample] for sample in samples)
        if underway.denominator is None and places:
            underway.denominator = underway.samples * places / len(samples)
        underway.places += places
        rows = kept_pairs(experience, samples, counts)
        self._underway = None
        self._accumulate(experience, rows, underway.denominator or 1.0, underway.tally)
        self._underway = underway

    def finish(self, iteration: int) -> UpdateReport:
        """Take one optimizer step over all added samples."""
        underway = self._open_update()
        self._underway = None
        scale = underway.denominator / underway.places if underway.denominator and underway.places else 1.0
        if scale != 1.0:
            self._scale_gradients(scale)
        norm = torch.nn.utils.clip_grad_norm_(self.sets.theta.values(), self.train_config.max_grad_norm)
        if not torch.isfinite(norm):
            raise Diverged(
                f"the gradient norm of iteration {iteration} is {float(norm)}, so an optimizer step would destroy "
                "the weights and was not taken; check the reward or lower train.lr, and run again."
            )
        self.optimizer.step()
        self.updates.add_(1)
        self.sets.follow(WeightSet.EMA, self.train_config.ema_decay_at(int(self.updates)))
        figures = underway.tally.means()
        self._objective.after_step(figures)
        if self.train_config.micro_batch == AUTO:
            figures["micro_batch"] = float(self._search.chosen)
        return UpdateReport(underway.tally.loss * scale, float(norm), underway.tally.rows, figures)

    def accumulate(
        self, experience: Experience, rows: Sequence[Pair], denominator: float
    ) -> tuple[float, dict[str, float]]:
        """Add the gradient of these rows, micro-batch by micro-batch; return their loss and figures."""
        tally = UpdateTally()
        self._accumulate(experience, rows, denominator, tally)
        return tally.loss, tally.means()

    def _accumulate(self, experience: Experience, rows: Sequence[Pair], denominator: float, tally: UpdateTally) -> None:
        sizes = self._rows_per_forward()
        for run in runs_of(rows, self.train_config.batches_over):
            start = 0
            while start < len(run):
                batch = run[start : start + sizes.size(len(run) - start)]

                def backward(batch: Sequence[Pair] = batch) -> tuple[Tensor, LossRows]:
                    part = self._objective.rows(self.adapter, self.sets, experience, batch)
                    loss = part.loss_B.sum() / denominator
                    loss.backward()
                    return loss, part

                made = sizes.run(len(batch), backward)
                if made is not None:
                    tally.add(*made)
                    start += len(batch)

    def _recomputed(self, limits: TrainingLimits | None) -> int:
        """Number of blocks that the backward pass computes again."""
        if limits is not None:
            return limits.recomputed
        blocks = len(blocks_of(self.adapter.transformer))
        set_to = recomputed_blocks(self.train_config.gradient_checkpointing, blocks)
        if set_to is not None:
            return set_to
        return blocks if self.adapter.device.type == "cuda" else 0

    def _rows_per_forward(self) -> RowsPerForward:
        rows = self.train_config.micro_batch
        return self._search if rows == AUTO else FixedRows(rows)

    def _open_update(self) -> _OpenUpdate:
        if self._underway is None:
            raise ValueError("no update is under way, so it cannot be added to or finished; call begin first.")
        return self._underway

    @torch.no_grad()
    def _scale_gradients(self, scale: float) -> None:
        for parameter in self.sets.theta.values():
            if parameter.grad is not None:
                parameter.grad.mul_(scale)
