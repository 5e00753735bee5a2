"""The trainer: accumulate gradients over rows, take one optimizer step, update the weight sets.

    begin(samples) --add(first part)--> add(second part) ... --finish--> one optimizer step

Work that leaves theta and its gradients alone may run between two parts: rollouts with other weights, a publication, a
checkpoint.

Invariant: the gradient of an update is the sum over its rows divided by the number of rows of its samples, kept or not.
It does not depend on the micro-batch, the order of rows or the division into parts
(tests/property/test_trainer_property.py, tests/property/test_pipeline_gradient_property.py), nor on the number of ranks
of the trainer's gang (tests/processes/test_gang_training.py).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spotlight.compute.memory.choices import TrainingLimits, recomputed_blocks
from spotlight.compute.meter import DeviceMeter
from spotlight.compute.models.adapter import Adapter
from spotlight.compute.parallel.gang_group import GangGroup
from spotlight.compute.parallel.group import CrewBroken
from spotlight.compute.parallel.sharding import Sharding
from spotlight.compute.train.batch_search import BatchSearch, FixedRows, RowsPerForward, sized_for
from spotlight.compute.train.config import AUTO, AlgorithmConfig, NftConfig, TrainConfig
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.lora import select_trainable
from spotlight.compute.train.objectives import LossRows, objective
from spotlight.compute.train.part import PartPlan, RowBatch, SampleGroup, in_lockstep, plan_part
from spotlight.compute.train.ranks import GangSide, MeetingResult, RankReport
from spotlight.compute.train.recomputation import blocks_of, recompute_first
from spotlight.compute.train.sharded import (
    clip_sharded,
    exchanging,
    holds_shares,
    shard,
    sharded_like,
)
from spotlight.compute.train.update_tally import UpdateTally
from spotlight.compute.train.weight_sets import WeightSet, WeightSets
from spotlight.control.pipeline.gap import groups_by_update
from spotlight.control.pipeline.staleness import check_versions
from spotlight.control.pipeline.tsp import Pair, runs_of
from spotlight.core.errors import Diverged, RestartNeeded
from spotlight.core.types import Sample


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
    seconds: float = 0.0
    """Time of the forwards and backwards on this rank."""


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
        copies = {WeightSet.EMA, *self._objective.weight_sets}
        self.sets = WeightSets(adapter.transformer, copies, is_late=train.is_sharded)
        self.optimizer = self._made_optimizer()
        self.updates = torch.zeros((), dtype=torch.int64)
        """Number of optimizer steps that theta contains; a tensor, so that a checkpoint restores it in place."""
        most, first = (None, 1) if limits is None else (limits.most, limits.first)
        self._search = BatchSearch(self.sets.theta.values(), DeviceMeter(adapter.device), most, first)
        self._underway: _OpenUpdate | None = None
        self._is_sharded = False
        self._side: GangSide | None = None
        """Side of this rank in its gang; None if it trains alone."""
        self._sharding: Sharding | None = None
        """Split of sequences over this rank's crew; installed with the first crew."""

    @property
    def behaviour(self) -> WeightSet | None:
        """The weight set for rollouts: `old` for NFT, theta (None) for Flow-GRPO."""
        return WeightSet.OLD if isinstance(self.algorithm, NftConfig) else None

    @property
    def objective_state(self) -> Mapping[str, Tensor]:
        """State of the objective beside weights and moments; part of a checkpoint."""
        return self._objective.state

    @property
    def gang(self) -> GangGroup | None:
        """The gang that this trainer is a rank of."""
        return None if self._side is None else self._side.gang

    def join(self, gang: GangGroup | None, is_even: bool = False) -> None:
        """Train with the other ranks of this gang, or alone; an update under way is dropped.

        `is_even`: ranks take equal shares whatever their speed. All ranks of a gang call it together.
        """
        self.drop_update()
        self._side = None
        if gang is None:
            return
        self.train_config.check_ranks(gang.ranks, roll_out=False)
        if self.train_config.is_sharded:
            self._shard(gang)
            is_even = True
        crew = gang.crew(self.train_config.sequence_ranks)
        if crew is not None and self._sharding is None:
            self._sharding = Sharding(self.adapter.transformer)
        self._side = GangSide(gang, crew, is_even)

    @property
    def is_sharded(self) -> bool:
        """Whether this rank holds only a share of the weights."""
        return self._is_sharded

    def _shard(self, gang: GangGroup) -> None:
        if self.is_sharded or int(self.updates):
            raise RestartNeeded(
                f"this process has taken {int(self.updates)} optimizer steps or holds a share of the weights for an "
                "earlier gang, and cannot divide them anew; restart it and restore the checkpoint."
            )
        # Before: a world that fails half-way cannot be formed again in this process.
        self._is_sharded = True
        # FSDP2 frees a whole parameter with its last reference.
        self._search = BatchSearch((), DeviceMeter(self.adapter.device))
        with exchanging(gang, "the division of the weights"):
            shard(self.adapter.transformer, gang)
        self.sets.shard(self.adapter.transformer, sharded_like)
        self.optimizer = self._made_optimizer()

    def _made_optimizer(self) -> torch.optim.AdamW:
        train = self.train_config
        return torch.optim.AdamW(
            self.sets.theta.values(),
            lr=train.lr,
            betas=train.betas,
            eps=train.optimizer_eps,
            weight_decay=train.weight_decay,
        )

    def drop_update(self) -> None:
        """Forget the gradient of an update under way."""
        self.optimizer.zero_grad(set_to_none=True)
        self._underway = None

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
        self.sets.fill()
        self.optimizer.zero_grad(set_to_none=True)
        self._underway = _OpenUpdate(samples, denominator=places)

    def add(self, experience: Experience, samples: Sequence[int]) -> None:
        """Add the gradient of these samples; a part that fails half-way drops the update."""
        group = self.group(experience.rollout.samples, experience.kept_B.tolist(), samples)
        self.add_planned(self.plan([group], experience.iteration), [experience])

    def group(
        self, samples: Sequence[Sample], kept: Sequence[bool], chosen: Sequence[int] | None = None
    ) -> SampleGroup:
        """Describe samples of one width, of which the `chosen` ones, or all, are trained."""
        positions = range(len(samples)) if chosen is None else chosen
        return SampleGroup(samples, kept, self._objective.places(samples), positions)

    def plan(self, groups: Sequence[SampleGroup], iteration: int) -> PartPlan:
        """Plan this rank's share of a part; changes nothing."""
        if self.keeps_before:
            for group in groups:
                check_versions([group.samples[sample] for sample in group.chosen], iteration, takes_stale=True)
        if self._side is None:
            return plan_part(groups, lambda pairs: [range(pairs)], 0)
        plan = plan_part(groups, self._side.shares, self._side.share_number)
        if not self.is_sharded:
            return plan

        def frozen(samples: Sequence[Sample]) -> frozenset[WeightSet]:
            return self._objective.frozen([sample.version == iteration - 1 for sample in samples])

        rows, over = self.train_config.rows_per_forward, self.train_config.batches_over
        return in_lockstep(plan, groups, self._side.shares, self._side.share_number, rows, over, frozen)

    def add_planned(self, plan: PartPlan, experiences: Sequence[Experience | None]) -> None:
        """Add the gradient of this rank's rows; there is one experience per group, None where it has no row."""
        underway = self._open_update()
        if underway.denominator is None and plan.first is not None:
            rows, samples = plan.first
            underway.denominator = underway.samples * rows / samples
        underway.places += plan.rows
        self._underway = None
        began = time.perf_counter()
        denominator = underway.denominator or 1.0
        with self._in_crew():
            if plan.batches is not None:
                self._accumulate_in_lockstep(plan.batches, experiences, denominator, underway.tally)
            else:
                for pairs, experience in zip(plan.pairs, experiences, strict=True):
                    if experience is not None:
                        self._accumulate(experience, pairs, denominator, underway.tally)
        underway.seconds += time.perf_counter() - began
        self._underway = underway

    def finish(self, iteration: int) -> UpdateReport:
        """Take one optimizer step over all added samples."""
        underway = self._open_update()
        self._underway = None
        tally, micro_batch = underway.tally, self._search.chosen
        if self._side is not None:
            met = self._meet(self._side, underway)
            tally, micro_batch = met.tally, met.micro_batch
        scale = underway.denominator / underway.places if underway.denominator and underway.places else 1.0
        if scale != 1.0:
            self._scale_gradients(scale)
        norm = self._clip()
        if not torch.isfinite(norm):
            raise Diverged(
                f"the gradient norm of iteration {iteration} is {float(norm)}, so an optimizer step would destroy "
                "the weights and was not taken; check the reward or lower train.lr, and run again."
            )
        self.optimizer.step()
        self.updates.add_(1)
        self.sets.follow(WeightSet.EMA, self.train_config.ema_decay_at(int(self.updates)))
        figures = tally.means()
        self._objective.after_step(figures)
        if self.train_config.micro_batch == AUTO:
            figures["micro_batch"] = float(micro_batch)
        return UpdateReport(tally.loss * scale, float(norm), tally.rows, figures)

    def _clip(self) -> Tensor:
        """Scale the gradient down to the largest norm; returns its norm before."""
        parameters, most = self.sets.theta.values(), self.train_config.max_grad_norm
        if self._side is not None and holds_shares(self.sets.theta):
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            return clip_sharded(gradients, most, self._side.gang)
        return torch.nn.utils.clip_grad_norm_(parameters, most)

    def _meet(self, side: GangSide, underway: _OpenUpdate) -> MeetingResult:
        """Add the gradients of all ranks; raises RankLost before anything but gradients has changed."""
        met = side.meet(
            RankReport(
                step=int(self.updates),
                rows=underway.places,
                tally=underway.tally,
                seconds=underway.seconds,
                micro_batch=self._search.chosen,
                is_settled=self._search.is_settled,
            ),
            self.sets.theta,
        )
        if met.is_settled:
            self._search.agree(met.micro_batch)
        return met

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

    def _accumulate_in_lockstep(
        self,
        batches: Sequence[RowBatch],
        experiences: Sequence[Experience | None],
        denominator: float,
        tally: UpdateTally,
    ) -> None:
        """Run planned batches; a dummy one only takes part in the forwards and backwards of the others."""
        for batch in batches:
            experience = experiences[batch.group]
            assert experience is not None
            part = self._objective.rows(self.adapter, self.sets, experience, batch.pairs, batch.also)
            loss = part.loss_B.sum() * (0.0 if batch.is_dummy else 1.0 / denominator)
            loss.backward()
            if not batch.is_dummy:
                tally.add(loss, part)

    @contextmanager
    def _in_crew(self) -> Iterator[None]:
        """Split forwards over this rank's crew, if it has one; forwards of rollouts stay whole."""
        side = self._side
        if side is not None and self.is_sharded:
            with exchanging(side.gang, "a gathering of weights"):
                yield
            return
        if side is None or side.crew is None or self._sharding is None:
            yield
            return
        self._sharding.bind(side.crew)
        try:
            yield
        except CrewBroken as error:
            raise side.lost(error) from None
        finally:
            self._sharding.bind(None)

    def _recomputed(self, limits: TrainingLimits | None) -> int:
        """Number of blocks that the backward pass computes again."""
        if limits is not None:
            return limits.recomputed
        blocks = len(blocks_of(self.adapter.transformer))
        set_to = recomputed_blocks(self.train_config.gradient_checkpointing, blocks)
        by_device = blocks if self.adapter.device.type == "cuda" else 0
        return by_device if set_to is None else set_to

    def _rows_per_forward(self) -> RowsPerForward:
        rows = self.train_config.micro_batch
        return sized_for(self.adapter, self._search if rows == AUTO else FixedRows(rows))

    def _open_update(self) -> _OpenUpdate:
        if self._underway is None:
            raise ValueError("no update is under way, so it cannot be added to or finished; call begin first.")
        return self._underway

    @torch.no_grad()
    def _scale_gradients(self, scale: float) -> None:
        for parameter in self.sets.theta.values():
            if parameter.grad is not None:
                parameter.grad.mul_(scale)
