"""Co-simulation: real numbers in virtual time.

The recipe's tiny model draws, is judged and trains in this process when simulated machines finish work. A sample
depends on its identity and weights alone, so samples are drawn in large batches when the first one is needed.
Invariant: verdicts and weights equal those of a real run of the recipe with the same selections, up to the last bits
(tests/unit/test_co_simulation.py). Previews in fp8 have its rounded numbers: all weights of the tiny model are trained,
so the sum of base and training is rounded, where a real run rounds frozen weights alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from spotlight.compute.data.prompts import run_prompts
from spotlight.compute.evaluation import to_images
from spotlight.compute.fast.attention import AttentionKernel
from spotlight.compute.fast.fast_model import accelerate
from spotlight.compute.fast.fp8 import rounding
from spotlight.compute.models import families
from spotlight.compute.rewards.combination import Verdict, combined, score_of
from spotlight.compute.rewards.protocol import Scorer
from spotlight.compute.rollout.denoise import Rollout, roll_out
from spotlight.compute.scores import EVALUATION_SEED
from spotlight.compute.train.checkpoint import load_copy, state_copy
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.recomputation import blocks_of
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.config import RunConfig
from spotlight.control.explore.config import Precision
from spotlight.control.pipeline.staleness import OF_STALENESS
from spotlight.core import messages as m
from spotlight.core.types import Prompt, PromptId, Sample
from spotlight.core.work import Request, Work
from spotlight.sim.memory import DrawnBy, Memory
from spotlight.sim.numerics import Issued, TrainedState

BASE = TrainedState().theta
KEPT_EVERY, KEPT_LAST = 5, 2
"""Every fifth iteration's trainer state is kept, and the last two: runs that diverge continue from the nearest one."""


@dataclass(frozen=True)
class _SampleTensors:
    """Tensors of one sample."""

    iteration: int
    """Iteration that trains on the sample."""
    rollout: Rollout


class RealNumerics:
    """One model, its trainer and its judge, for any number of simulated runs of one recipe and seed.

    A step that arrives in parts is taken as a whole, which changes only the last bits.
    """

    counts_bits = False

    def __init__(self, config: RunConfig, judge: Scorer, memory: Memory) -> None:
        torch.set_float32_matmul_precision("high" if config.model.tf32 else "highest")
        self._config = config
        self._judge = judge
        self.memory = memory
        self._adapter = families.load(config.model.name, config.model.device)
        world = families.world_of(self._adapter)
        self._rewards = config.reward.rewards(world.reward)
        prompts = run_prompts(config.data, world)
        self._prompts: dict[PromptId, Prompt] = {each.id: each for each in (*prompts.training, *prompts.held_out)}
        # Some runs may be asynchronous; training on fresh samples is the same with keeps_before.
        self._trainer = Trainer(self._adapter, config.train, config.algorithm, config.seed, keeps_before=True)
        if config.model.compile is True:
            self._adapter.fast = accelerate(self._adapter.transformer, AttentionKernel.MASKED)
        self._held = BASE
        """Digest of the theta that the trainer holds."""
        self._snapshots: dict[str, dict[str, Tensor]] = {BASE: state_copy(self._trainer)}
        """Trainer states after the last step of some iterations, by theta."""
        self._temporary: list[str] = []
        """Snapshots to be deleted when newer ones exist, oldest first."""
        self._orders: dict[str, tuple[TrainedState, m.Train]] = {}
        """State before, and order of, the step that made each theta."""
        self._published: dict[str, tuple[str, WeightSet | None]] = {BASE: (BASE, self._trainer.behaviour)}
        """Theta and weight set of each published digest."""
        self._issued: Issued = lambda iteration, work: []
        self._previews = Precision.EXACT
        """Arithmetic of this run's previews."""
        self._has_stale = False
        """Whether this run trained on a sample that was one version old."""
        self._drawn: dict[bytes, _SampleTensors] = {}
        """Tensors by the bytes that name them."""

    # -- called by machines --------------------------------------------------------------------------------------------

    def begin_run(self, issued: Issued, previews: Precision) -> None:
        self._issued = issued
        self._previews = previews
        self._drawn.clear()
        self._has_stale = False

    def first_latent(self, sample: Sample) -> str:
        return ""

    def next_latent(self, latent: str, step: int, weights_digest: str) -> str:
        return ""

    def latent_at(self, sample: Sample, step: int, weights_digest: str) -> str:
        return ""

    def tensors(self, request: Request, weights_digest: str, salt: str) -> bytes:
        """A name; the tensors themselves stay in this process."""
        return f"{weights_digest}/{request.id}".encode()

    def score(self, request: Request, weights_digest: str) -> m.Score:
        drawn_by = DrawnBy(weights_digest, self._previews if request.work is Work.PREVIEW else Precision.EXACT)
        known = self.memory.verdict(request, drawn_by)
        if known is None:
            self._draw(self._batch(request, drawn_by), drawn_by)
            known = self.memory.verdict(request, drawn_by)
            assert known is not None
        return known

    def trained(self, before: TrainedState, order: m.Train, after: TrainedState) -> Mapping[str, float]:
        self._orders[after.theta] = (before, order)
        if order.last:
            self._published[after.behaviour] = (after.theta, self._trainer.behaviour)
        self._published[after.average] = (after.theta, WeightSet.EMA)
        if after.theta not in self.memory.steps:
            self.memory.steps[after.theta] = self._step(before, order, after.theta)
        if order.last:
            # Only another run could need these tensors, and it draws them again.
            self._drawn = {name: one for name, one in self._drawn.items() if one.iteration > order.iteration}
        return self._reported(order, self.memory.steps[after.theta])

    def _reported(self, order: m.Train, figures: Mapping[str, float]) -> Mapping[str, float]:
        """The figures, without those of staleness until the run has trained on a stale sample."""
        self._has_stale |= any(item.request.sample.version < order.iteration for item in order.items)
        return {name: value for name, value in figures.items() if self._has_stale or name not in OF_STALENESS}

    # -- pictures ------------------------------------------------------------------------------------------------------

    def _batch(self, request: Request, drawn_by: DrawnBy) -> list[Request]:
        """The request and others like it that have no verdict yet, in the order of issue."""
        sampling, batch = request.sample.sampling, [request]
        for other in self._issued(request.iteration, request.work):
            if len(batch) == self._config.train.rows_per_forward:
                break
            theirs = other.sample.sampling
            alike = (theirs.steps, theirs.window.size) == (sampling.steps, sampling.window.size)
            fits = alike and other.weights == request.weights
            if fits and other.id != request.id and not self.memory.has(other, drawn_by):
                batch.append(other)
        return batch

    def _draw(self, requests: Sequence[Request], drawn_by: DrawnBy) -> None:
        rollout = self._rollout(requests, drawn_by)
        size = requests[0].sample.sampling.size
        images = to_images(self._adapter.decode(rollout.x0_BSC, size))
        prompts = [self._prompts[request.sample.prompt] for request in requests]
        scores = [self._judge.score(term, images, prompts) for term in self._rewards]
        for row, request in enumerate(requests):
            found = combined(self._rewards, [Verdict(score_of(each, row)) for each in scores]).score
            self.memory.keep(request, drawn_by, found.reward, found.components)
            if request.work is Work.ROLLOUT:
                self._remember(request, drawn_by.digest, rollout, row)

    def _rollout(self, requests: Sequence[Request], drawn_by: DrawnBy) -> Rollout:
        samples, count = [request.sample for request in requests], len(requests)
        if self._config.model.compile is True:
            # A new row count would cause a new compilation.
            samples += samples[-1:] * (self._config.train.rows_per_forward - count)
        seed = EVALUATION_SEED if requests[0].work is Work.EVALUATION else self._config.seed
        cond = self._adapter.collate(self._adapter.encode([self._prompts[sample.prompt] for sample in samples]))
        guided = samples[0].sampling.guidance != 1.0
        uncond = self._adapter.collate([self._adapter.unconditional()] * len(samples)) if guided else None
        is_rounded = drawn_by.precision is Precision.FP8
        with self._using(drawn_by.digest), rounding(blocks_of(self._adapter.transformer) if is_rounded else ()):
            drawn = roll_out(self._adapter, samples, cond, uncond, seed)
        return Rollout(
            samples=drawn.samples[:count],
            x0_BSC=drawn.x0_BSC[:count],
            path_BKSC=drawn.path_BKSC[:count],
            log_prob_BK=drawn.log_prob_BK[:count],
            mean_BKSC=drawn.mean_BKSC[:count],
        )

    @contextmanager
    def _using(self, weights_digest: str) -> Iterator[None]:
        """Use the published weights in the model inside the block."""
        theta, which = self._published[weights_digest]
        if theta not in self._snapshots:
            self._go_to(theta)
        if theta not in self._snapshots:
            self._keep(theta, iteration=1)
        snapshot = self._snapshots[theta]
        kept = {name: p.data for name, p in self._trainer.sets.theta.items()}
        try:
            for name, p in self._trainer.sets.theta.items():
                p.data = snapshot[f"{'theta' if which is None else which.value}.{name}"]
            yield
        finally:
            for name, p in self._trainer.sets.theta.items():
                p.data = kept[name]

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _go_to(self, theta: str) -> None:
        """Bring the trainer to this theta: from a snapshot, or step by step from the nearest one."""
        if theta == self._held:
            return
        if theta in self._snapshots:
            load_copy(self._trainer, self._snapshots[theta])
            self._held = theta
            return
        before, order = self._orders[theta]
        self._step(before, order, theta)

    def _step(self, before: TrainedState, order: m.Train, theta: str) -> dict[str, float]:
        # Tensors first: those that are gone are drawn again, with other weights than the step starts from.
        experience = self._experience(order, before)
        self._go_to(before.theta)
        report = self._trainer.update(experience, range(len(experience)))
        if order.last:
            self._trainer.end_iteration()
            self._keep(theta, order.iteration)
        self._held = theta
        return {"loss": report.loss, "grad_norm": report.grad_norm, "rows": float(report.rows), **report.figures}

    def _keep(self, theta: str, iteration: int) -> None:
        """Keep a snapshot, for every KEPT_EVERY-th iteration permanently."""
        self._snapshots[theta] = state_copy(self._trainer)
        if iteration % KEPT_EVERY:
            self._temporary.append(theta)
        for old in self._temporary[:-KEPT_LAST]:
            del self._snapshots[old]
        self._temporary = self._temporary[-KEPT_LAST:]

    def _rows(self, order: m.Train, before: TrainedState) -> list[Rollout]:
        """Tensors of the order's samples; those that are gone are drawn again."""
        digests = [before.drew(item.request.sample, order.iteration) for item in order.items]
        names = [self.tensors(item.request, drew, "") for item, drew in zip(order.items, digests, strict=True)]
        missing: dict[str, list[Request]] = {}
        for item, drew, name in zip(order.items, digests, names, strict=True):
            if name not in self._drawn:
                missing.setdefault(drew, []).append(item.request)
        for drew, requests in missing.items():
            for start in range(0, len(requests), self._config.train.rows_per_forward):
                batch = requests[start : start + self._config.train.rows_per_forward]
                rollout = self._rollout(batch, DrawnBy(drew))
                for row, request in enumerate(batch):
                    self._remember(request, drew, rollout, row)
        return [self._drawn[name].rollout for name in names]

    def _remember(self, request: Request, weights_digest: str, rollout: Rollout, row: int) -> None:
        self._drawn[self.tensors(request, weights_digest, "")] = _SampleTensors(request.iteration, _row(rollout, row))

    def _experience(self, order: m.Train, before: TrainedState) -> Experience:
        requests = [item.request for item in order.items]
        rows = self._rows(order, before)
        guided = requests[0].sample.sampling.guidance != 1.0
        device = self._adapter.device
        return Experience(
            rollout=Rollout(
                samples=tuple(request.sample for request in requests),
                x0_BSC=torch.stack([row.x0_BSC for row in rows]),
                path_BKSC=torch.stack([row.path_BKSC for row in rows]),
                log_prob_BK=torch.stack([row.log_prob_BK for row in rows]),
                mean_BKSC=torch.stack([row.mean_BKSC for row in rows]),
            ),
            cond=self._adapter.collate(self._adapter.encode([item.prompt for item in order.items])),
            uncond=self._adapter.collate([self._adapter.unconditional()] * len(requests)) if guided else None,
            advantage_B=torch.tensor([item.advantage for item in order.items], device=device),
            kept_B=torch.tensor([item.kept for item in order.items], device=device),
            iteration=order.iteration,
        )


def _row(rollout: Rollout, row: int) -> Rollout:
    return Rollout(
        samples=(rollout.samples[row],),
        x0_BSC=rollout.x0_BSC[row],
        path_BKSC=rollout.path_BKSC[row],
        log_prob_BK=rollout.log_prob_BK[row],
        mean_BKSC=rollout.mean_BKSC[row],
    )
