"""A learner that previews: few-step samples of the next prompts on the weights that this iteration rolled out with.

Previews are drawn before the updates of the iteration and scored during them. They select the seeds of the next
iteration by the variance of their rewards and never enter the loss. Seeds: the prompt at position p of the run has the
block p (N + G) .. (p + 1) (N + G): N to preview, then G fresh ones, so that no seed is drawn twice.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.explore.figures import Arm, ArmResult, AuditPoint, ExploreSettings
from benchmarks.explore.oversampling import Oversampler, widened
from benchmarks.learn.figures import SeedResult
from benchmarks.learn.run import Group, Learner, Recorder, console, train, use_device
from spotlight.compute.rewards.in_process import scorer
from spotlight.compute.rewards.protocol import Floats, Image, Scorer
from spotlight.compute.rollout.denoise import Rollout
from spotlight.compute.train.experience import Experience
from spotlight.config import RunConfig
from spotlight.control.advantage import GroupOutcome
from spotlight.control.explore.config import Baseline
from spotlight.control.explore.fidelity import AuditedGroup, AuditedSeed, fidelity
from spotlight.control.explore.seeds import Chosen, Preview, audit_key, audit_seeds, choose, prompt_mean, unselected
from spotlight.core.types import Prompt, Sample, Sampling, Version


@dataclass(frozen=True)
class Scored:
    """Previews by group of their iteration."""

    iteration: int
    previews: list[list[Preview]]


class Explorer(Learner):
    """Selects seeds by previews; the rest is the plain learner's."""

    def __init__(self, config: RunConfig, pool: Scorer, settings: ExploreSettings) -> None:
        super().__init__(config, pool)
        self.settings = settings
        self.audits: list[AuditPoint] = []
        self.previews_drawn = 0
        self._scoring: Future[Scored] | None = None
        self._seen: list[list[Preview]] = []
        """Previews that selected this iteration's seeds."""
        self._chosen: list[Chosen] = []
        self._background = ThreadPoolExecutor(1)

    def issue(self, iteration: int) -> list[Group]:
        """The plain learner's prompts and windows, with the seeds that the previews selected."""
        groups = super().issue(iteration)
        previews = self._seen = self._previews_for(iteration, len(groups))
        self._chosen = [
            choose(previews[number], self.config.rollout.group_size, self._fresh(iteration, number))
            for number in range(len(groups))
        ]
        return [with_seeds(group, chosen.seeds) for group, chosen in zip(groups, self._chosen, strict=True)]

    def compare(
        self, iteration: int, groups: list[Group], rollout: Rollout, rewards_by_group: list[np.ndarray]
    ) -> tuple[Experience, list[GroupOutcome]]:
        """Called last before the updates: audits and previews need the weights of this iteration."""
        if iteration and iteration % self.settings.audit_every == 0:
            self._audit(iteration, groups, rewards_by_group)
        if iteration + 1 < self.config.iterations:
            self._start_previews(iteration + 1, version=iteration)
        return super().compare(iteration, groups, rollout, rewards_by_group)

    def baselines(
        self, iteration: int, groups: list[Group], rewards_by_group: list[np.ndarray]
    ) -> list[float | None] | None:
        """With an audited baseline, a share of the unselected seeds is rolled out for it on the same weights."""
        if self.settings.baseline is Baseline.KEPT:
            return None
        left = [unselected(seen, chosen) for seen, chosen in zip(self._seen, self._chosen, strict=True)]
        keys = [audit_key(self.config.seed, iteration, group.prompt.id) for group in groups]
        drawn = [audit_seeds(seeds, self.settings.audit_share, key) for seeds, key in zip(left, keys, strict=True)]
        audited = [with_seeds(group, seeds) for group, seeds in zip(groups, drawn, strict=True)]
        rewards = self._rewards(audited, self._draw(audited)) if any(drawn) else [np.empty(0)] * len(groups)
        return [
            prompt_mean(known, exact, len(seeds))
            for known, exact, seeds in zip(rewards_by_group, rewards, left, strict=True)
        ]

    def _block(self, iteration: int, number: int) -> int:
        settings = self.config.rollout
        return (iteration * settings.prompts + number) * (self.settings.previews + settings.group_size)

    def _fresh(self, iteration: int, number: int) -> range:
        first = self._block(iteration, number) + self.settings.previews
        return range(first, first + self.config.rollout.group_size)

    def _previews_for(self, iteration: int, groups: int) -> list[list[Preview]]:
        if self._scoring is None:
            return [[] for _ in range(groups)]
        scored = self._scoring.result()
        assert scored.iteration == iteration
        return scored.previews

    def _start_previews(self, iteration: int, version: int) -> None:
        """Draw previews of that iteration's prompts on the weights of `version`; score them in the background."""
        settings = self.config.rollout
        sampling = Sampling(steps=self.settings.steps, size=self.adapter.native_size, guidance=settings.guidance)
        groups = []
        for number, prompt in enumerate(self.order.take(iteration * settings.prompts, settings.prompts)):
            first = self._block(iteration, number)
            seeds = range(first, first + self.settings.previews)
            groups.append(Group(prompt, samples_of(prompt, seeds, sampling, version)))
        images = self._draw(groups)
        self.previews_drawn += len(images)
        self._scoring = self._background.submit(self._score_previews, iteration, groups, images)

    def _score_previews(self, iteration: int, groups: Sequence[Group], images: list[Image]) -> Scored:
        rewards = self._rewards(groups, images)
        return Scored(
            iteration,
            [
                [Preview(sample.seed, float(reward)) for sample, reward in zip(group.samples, row, strict=True)]
                for group, row in zip(groups, rewards, strict=True)
            ],
        )

    def _audit(self, iteration: int, groups: Sequence[Group], rewards_by_group: Sequence[np.ndarray]) -> None:
        """Roll out all unselected previewed seeds of a few prompts too, on the same weights, and compare."""
        previews = self._seen
        numbers = [n for n in range(len(groups)) if len(previews[n]) > len(groups[n].samples)]
        numbers = numbers[: self.settings.audit_prompts]
        if not numbers:
            return
        extra = [with_seeds(groups[n], unselected(previews[n], self._chosen[n])) for n in numbers]
        images = self._draw(extra)
        measured = []
        for number, group, exact in zip(numbers, extra, self._rewards(extra, images), strict=True):
            proxy = {preview.seed: preview.reward for preview in previews[number]}
            kept = zip(groups[number].samples, rewards_by_group[number], strict=True)
            measured.append(
                AuditedGroup(
                    kept=tuple(AuditedSeed(proxy[s.seed], float(r)) for s, r in kept if s.seed in proxy),
                    audited=tuple(
                        AuditedSeed(proxy[s.seed], float(r)) for s, r in zip(group.samples, exact, strict=True)
                    ),
                    share=1.0,
                    previewed=len(proxy),
                )
            )
        figures = fidelity(measured)
        self.audits.append(AuditPoint(iteration=iteration, figures=figures, samples=len(images)))
        shown = "  ".join(f"{name} {value:.3f}" for name, value in figures.items() if name not in ("pairs", "audited"))
        console.print(f"seed {self.config.seed}  iteration {iteration:3d}  audit  {shown}", soft_wrap=True)

    def _draw(self, groups: Sequence[Group]) -> list[Image]:
        with self.trainer.sets.using(self.trainer.behaviour):
            return self.pictures(groups)

    def _rewards(self, groups: Sequence[Group], images: list[Image]) -> list[Floats]:
        prompts = [group.prompt for group in groups for _ in group.samples]
        total = self.pool.score(self.config.reward.only_reward(self.world.reward), images, prompts).total
        ends = np.cumsum([len(group.samples) for group in groups])
        return np.split(total, ends[:-1])


def samples_of(prompt: Prompt, seeds: Sequence[int], sampling: Sampling, version: int) -> tuple[Sample, ...]:
    made_on = Version(version)
    return tuple(Sample(prompt=prompt.id, seed=seed, sampling=sampling, version=made_on) for seed in seeds)


def with_seeds(group: Group, seeds: Sequence[int]) -> Group:
    """The group with other seeds; its prompt, sampling and window stay."""
    example = group.samples[0]
    return replace(group, samples=samples_of(group.prompt, seeds, example.sampling, example.version))


@dataclass(frozen=True)
class ArmRun:
    """One whole run of one arm, and the file of its curve."""

    path: Path
    config: RunConfig
    arm: Arm
    settings: ExploreSettings
    variant: str = ""

    def learner(self, pool: Scorer) -> Learner:
        match self.arm:
            case Arm.PLAIN:
                return Learner(self.config, pool)
            case Arm.EXPLORE:
                return Explorer(self.config, pool, self.settings)
            case Arm.OVERSAMPLE:
                return Oversampler(self.config, pool, self.settings)
            case Arm.WHOLE:
                return Learner(widened(self.config, self.settings.previews), pool)


class ArmRecorder(Recorder):
    """The curve of one seed of one arm, with its audits."""

    def __init__(self, run: ArmRun, learner: Learner) -> None:
        super().__init__(run.config, learner.adapter.family, run.path)
        self.run = run
        self.learner = learner

    def result(self) -> SeedResult:
        plain = super().result()
        fields = {name: getattr(plain, name) for name in SeedResult.__struct_fields__}
        explorer = self.learner if isinstance(self.learner, Explorer) else None
        return ArmResult(
            **fields,
            arm=self.run.arm,
            variant=self.run.variant,
            explore=None if self.run.arm is Arm.PLAIN else self.run.settings.model_dump(mode="json"),
            audits=tuple(explorer.audits) if explorer else (),
            previews=explorer.previews_drawn if explorer else 0,
        )


def run_arm(run: ArmRun) -> None:
    """Run one arm of one seed; its curve becomes its file."""
    use_device(run.config)
    run.path.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with console.status("loading") as status, scorer(run.config.reward, run.config.model.device) as pool:
        learner = run.learner(pool)
        train(learner, ArmRecorder(run, learner), status, f"{run.arm.value}, seed {run.config.seed}")
    run.path.with_suffix(".part").replace(run.path)
    console.print(f"{run.path}: {time.monotonic() - started:.0f} s", soft_wrap=True)
