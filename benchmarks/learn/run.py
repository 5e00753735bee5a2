"""One seed of one recipe in one process: the parts of the plainest loop, in the order an iteration calls them."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.status import Status

from benchmarks.learn.figures import CurvePoint, Diagnostics, SeedResult
from benchmarks.lib import merge
from benchmarks.lib.provenance import provenance
from spotlight.compute.data.order import PromptOrder
from spotlight.compute.data.prompts import run_prompts
from spotlight.compute.data.worlds import World
from spotlight.compute.evaluation import evaluate, to_images
from spotlight.compute.fast.attention import AttentionKernel
from spotlight.compute.fast.fast_model import accelerate
from spotlight.compute.models import families
from spotlight.compute.models.families import usable_device
from spotlight.compute.models.pixels import PixelAdapter
from spotlight.compute.rewards.config import Term
from spotlight.compute.rewards.in_process import scorer
from spotlight.compute.rewards.protocol import Image, Scorer
from spotlight.compute.rollout.config import InitialNoise
from spotlight.compute.rollout.denoise import Rollout, roll_out
from spotlight.compute.scores import Evaluation, picture_grid
from spotlight.compute.train.experience import Experience, joined
from spotlight.compute.train.lora import merged_state
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.compute.weights import files
from spotlight.config import RunConfig
from spotlight.control.advantage import GroupOutcome, LaggedStd, group_advantages
from spotlight.core.types import Prompt, Sample, Version

console = Console(stderr=True)


@dataclass(frozen=True)
class Group:
    """The samples of one prompt in one iteration."""

    prompt: Prompt
    samples: tuple[Sample, ...]


class Learner:
    """One seed of one recipe: the model, its judge, and the state that an iteration changes."""

    def __init__(self, config: RunConfig, pool: Scorer) -> None:
        self.config = config
        self.pool = pool
        self.adapter: PixelAdapter = families.load(config.model.name, config.model.device)
        self.world: World = families.world_of(self.adapter)
        self.prompts = run_prompts(config.data, self.world)
        self.order = PromptOrder(self.prompts.training, config.seed)
        self.trainer = Trainer(self.adapter, config.train, config.algorithm, config.seed)
        self.lagged = LaggedStd()
        if config.model.compile is True:
            self.adapter.fast = accelerate(self.adapter.transformer, AttentionKernel.MASKED)

    def iterate(self, iteration: int) -> Diagnostics:
        """Roll out, score, compare, train."""
        groups = self.issue(iteration)
        rollout = self.roll_out(groups)
        rewards_by_group = self.score(groups, rollout)
        experience, outcomes = self.compare(iteration, groups, rollout, rewards_by_group)
        size = self.config.rollout.group_size
        reports = self.trainer.run_iteration(experience, [range(g * size, (g + 1) * size) for g in range(len(groups))])
        return Diagnostics(
            reward=float(np.mean(rewards_by_group)),
            zero_variance_groups=outcomes.count(GroupOutcome.ZERO_VARIANCE),
            grad_norm=float(np.mean([report.grad_norm for report in reports])),
            first_update=dict(reports[0].figures),
            last_update=dict(reports[-1].figures),
        )

    def issue(self, iteration: int) -> list[Group]:
        """The next prompts, with fresh seeds and one window per group."""
        settings = self.config.rollout
        first = iteration * settings.prompts
        groups = []
        for number, prompt in enumerate(self.order.take(first, settings.prompts)):
            window = settings.window_of_group(self.config.seed, iteration, number)
            sampling = settings.sampling(self.adapter.native_size, window)
            seeds = range((first + number) * settings.group_size, (first + number + 1) * settings.group_size)
            shared = seeds[0] if settings.initial_noise is InitialNoise.SHARED else None
            version = Version(iteration)
            samples = tuple(
                Sample(prompt=prompt.id, seed=seed, sampling=sampling, version=version, shared_start=shared)
                for seed in seeds
            )
            groups.append(Group(prompt, samples))
        return groups

    def roll_out(self, groups: list[Group]) -> Rollout:
        settings, batch = self.config.rollout, self.config.train.rows_per_forward
        samples = [sample for group in groups for sample in group.samples]
        self.cond = self.adapter.collate(self.adapter.encode([group.prompt for group in groups for _ in group.samples]))
        self.uncond = None
        if settings.guidance != 1.0:
            self.uncond = self.adapter.collate([self.adapter.unconditional()] * len(samples))
        parts = []
        with self.trainer.sets.using(self.trainer.behaviour):
            for start in range(0, len(samples), batch):
                rows = slice(start, start + batch)
                uncond = None if self.uncond is None else self.uncond.rows(rows)
                parts.append(roll_out(self.adapter, samples[rows], self.cond.rows(rows), uncond, self.config.seed))
        return joined(parts)

    def pictures(self, groups: Sequence[Group]) -> list[Image]:
        """Draw with the present weights; training state does not change."""
        batch, guided = self.config.train.rows_per_forward, self.config.rollout.guidance != 1.0
        samples = [sample for group in groups for sample in group.samples]
        prompts = [group.prompt for group in groups for _ in group.samples]
        images: list[Image] = []
        for start in range(0, len(samples), batch):
            rows, texts = samples[start : start + batch], prompts[start : start + batch]
            count = len(rows)
            if self.config.model.compile is True:
                # A new number of rows would cause a new compilation.
                rows += rows[-1:] * (batch - count)
                texts += texts[-1:] * (batch - count)
            cond = self.adapter.collate(self.adapter.encode(texts))
            uncond = self.adapter.collate([self.adapter.unconditional()] * len(rows)) if guided else None
            drawn = roll_out(self.adapter, rows, cond, uncond, self.config.seed)
            images += to_images(self.adapter.decode(drawn.x0_BSC[:count], self.adapter.native_size))
        return images

    def score(self, groups: list[Group], rollout: Rollout) -> list[np.ndarray]:
        images = to_images(self.adapter.decode(rollout.x0_BSC, self.adapter.native_size))
        prompts = [group.prompt for group in groups for _ in group.samples]
        total = self.pool.score(self.config.reward.only_reward(self.world.reward), images, prompts).total
        return list(total.reshape(len(groups), -1))

    def compare(
        self, iteration: int, groups: list[Group], rollout: Rollout, rewards_by_group: list[np.ndarray]
    ) -> tuple[Experience, list[GroupOutcome]]:
        settings = self.config.algorithm.advantage
        advantages = group_advantages(
            rewards_by_group,
            std_mode=settings.std,
            eps=settings.eps,
            lagged_std=self.lagged.std,
            baselines=self.baselines(iteration, groups, rewards_by_group),
        )
        self.lagged = self.lagged.updated(rewards_by_group)
        for problem in [problem for group in advantages for problem in group.problems]:
            console.print(f"warning: {problem}")
        device = self.adapter.device
        experience = Experience(
            rollout=rollout,
            cond=self.cond,
            uncond=self.uncond,
            advantage_B=torch.tensor(np.concatenate([a.advantages for a in advantages]), device=device).float(),
            kept_B=torch.tensor(np.concatenate([a.kept for a in advantages]), device=device),
            iteration=iteration,
        )
        return experience, [group.outcome for group in advantages]

    def baselines(
        self, iteration: int, groups: list[Group], rewards_by_group: list[np.ndarray]
    ) -> list[float | None] | None:
        """Baselines of the advantages; None: the groups' means."""
        return None

    def evaluate(self, judged: bool) -> Evaluation:
        """Held-out prompts with the EMA weights."""
        settings = self.config.eval
        rewards: list[Term | str] = [self.config.reward.only_reward(self.world.reward)]
        if judged:
            rewards.append(self.config.reward.judge or self.world.judge)
        prompts = self.prompts.evaluated(settings.prompts)
        with self.trainer.sets.using(WeightSet.EMA):
            return evaluate(
                self.adapter, prompts, settings.sampling(self.adapter.native_size), rewards, self.pool,
                batch=self.config.train.rows_per_forward,
            )  # fmt: skip


class Recorder:
    """The curve of one seed; written after every evaluation, so that an interrupted run keeps its points."""

    def __init__(self, config: RunConfig, family: str, path: Path) -> None:
        self.config = config
        self.family = family
        self.loss = config.algorithm.kind
        self.path = path
        self.points: list[CurvePoint] = []
        self._started = time.monotonic()

    def record(self, iteration: int, scored: Evaluation, trained: Diagnostics | None = None) -> None:
        estimate = scored.estimate()
        point = CurvePoint(
            iteration=iteration,
            seconds=time.monotonic() - self._started,
            reward=estimate.value,
            low=estimate.low,
            high=estimate.high,
            strict=scored.strict,
            judge=scored.estimate(1).value if len(scored.scores) > 1 else None,
            trained=trained,
        )
        self.points.append(point)
        strict = "" if point.strict is None else f"  strict {point.strict:.3f}"
        judge = "" if point.judge is None else f"  judge {point.judge:.3f}"
        console.print(
            f"seed {self.config.seed}  iteration {iteration:3d}  {point.seconds:6.1f} s  "
            f"held-out reward {point.reward:.3f}{strict}{judge}",
            soft_wrap=True,
        )
        merge.write(self.path.with_suffix(".part"), self.result())

    def result(self) -> SeedResult:
        settings = self.config.model_dump(mode="json")
        return SeedResult(
            family=self.family, loss=self.loss, seed=self.config.seed, config=settings, points=self.points,
            **provenance(),
        )  # fmt: skip


def use_device(config: RunConfig) -> None:
    """On a CPU all cores train while no reward is scored; on a GPU the host only launches."""
    device = config.model.device
    usable_device(device)
    torch.set_num_threads(len(os.sched_getaffinity(0)) if device == "cpu" else 1)
    torch.set_float32_matmul_precision("high" if config.model.tf32 else "highest")


def train(learner: Learner, recorder: Recorder, status: Status, title: str) -> tuple[Evaluation, Evaluation]:
    """Run all iterations with their evaluations; return the first and the last evaluation."""
    config = learner.config
    before = scored = learner.evaluate(judged=True)
    recorder.record(0, before)
    for done in range(1, config.iterations + 1):
        status.update(f"{title}: iteration {done} of {config.iterations}")
        trained = learner.iterate(done - 1)
        last = done == config.iterations
        if done % config.eval.every == 0 or last:
            scored = learner.evaluate(judged=last or done % config.eval.judge_every == 0)
            recorder.record(done, scored, trained)
    return before, scored


def run_seed(config: RunConfig, path: Path) -> None:
    """Run one seed; write its curve to `path`, with pictures and weights beside it."""
    use_device(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    with console.status("loading") as status, scorer(config.reward, config.model.device) as pool:
        learner = Learner(config, pool)
        recorder = Recorder(config, learner.adapter.family, path)
        before, after = train(learner, recorder, status, f"seed {config.seed}")
    shown = range(min(24, len(before.images)))
    pairs = [image for i in shown for image in (before.images[i], after.images[i])]
    picture_grid(pairs, 8).save(path.with_suffix(".png"))
    with learner.trainer.sets.using(WeightSet.EMA):
        files.write(path.with_suffix(".safetensors"), learner.adapter.family, merged_state(learner.adapter.transformer))
    path.with_suffix(".part").replace(path)
    console.print(f"before and after, in pairs: {path.with_suffix('.png')}", soft_wrap=True)
    console.print(f"weights: {path.with_suffix('.safetensors')}", soft_wrap=True)
