"""One seed of one recipe, trained plainly, and rankings of a checkpoint's seeds by previews on older weights.

At checkpoint k the prompts that come next are drawn with the behaviour weights of version k exactly as a rollout draws
them, and with the weights of version k - lag as previews. Previews start from the noise of the exact sample; noise
inside an SDE window is new, as in the scheduled loop. The seeds are never trained on, and measuring does not change
training: all noise comes from identity.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from torch import Tensor

from benchmarks.learn.run import Group, Learner, console, use_device
from benchmarks.lib import merge
from benchmarks.lib.provenance import provenance
from benchmarks.staleness.figures import Checkpoint, Lagged, Look, StalenessResult, StalenessSettings
from benchmarks.staleness.statistics import random_choice, ranking
from spotlight.compute.rewards.in_process import scorer
from spotlight.compute.rewards.protocol import Floats
from spotlight.config import RunConfig
from spotlight.core.types import Prompt, Sample, SamplerKind, Sampling, Version

FIRST_SEED = 10**9
"""Far above all seeds of the training."""
REDRAWN = 10**9
"""Added to a seed for window noise other than the exact sample's."""

Weights = Mapping[str, Tensor]


class Measured:
    """A plain learner that keeps the behaviour weights that later checkpoints need."""

    def __init__(self, learner: Learner, settings: StalenessSettings) -> None:
        self.learner = learner
        self.config = learner.config
        self.settings = settings
        self._kept: dict[int, Weights] = {}

    def reach(self, version: int) -> None:
        """After publication of this version: keep its weights if they are needed later, drop others."""
        if version in self.settings.versions:
            sets, behaviour = self.learner.trainer.sets, self.learner.trainer.behaviour
            weights = sets.theta if behaviour is None else sets[behaviour]
            self._kept[version] = {name: tensor.detach().clone() for name, tensor in weights.items()}
        for old in [old for old in self._kept if old < version - max(self.settings.lags)]:
            del self._kept[old]

    def checkpoint(self, version: int) -> Checkpoint:
        """Rank the candidates of the next prompts by previews of every kind and lag, against their exact rewards."""
        exact = self._rewards(self._groups(version, version, Look.EXACT))
        lagged = []
        for look in (Look.FULL, Look.FEW):
            for lag in (0, *self.settings.lags):
                same = look is Look.FULL and lag == 0 and self.config.rollout.sampler is SamplerKind.ODE
                # An ODE sample of the same weights is the exact sample, so there is nothing to draw.
                proxy = exact if same else self._rewards(self._groups(version, version - lag, look))
                lagged.append(Lagged(look=look, lag=lag, ranking=ranking(proxy, exact, self.settings.kept)))
        return Checkpoint(
            iteration=version,
            reward=float(np.mean(exact)),
            varied_prompts=sum(bool(np.ptp(row) > 0) for row in exact),
            random=random_choice(exact, self.settings.kept),
            lagged=tuple(lagged),
        )

    def _groups(self, checkpoint: int, version: int, look: Look) -> list[Group]:
        """The candidates of the prompts after `checkpoint`, to be drawn with the weights of `version`."""
        settings = self.config.rollout
        size = self.learner.adapter.native_size
        groups = []
        prompts = self.learner.order.take(checkpoint * settings.prompts, self.settings.prompts)
        for number, prompt in enumerate(prompts):
            window = settings.window_of_group(self.config.seed, checkpoint, number)
            sampling = settings.sampling(size, window)
            if look is Look.FEW:
                sampling = Sampling(steps=self.settings.preview_steps, size=size, guidance=settings.guidance)
            seeds = range(FIRST_SEED, FIRST_SEED + self.settings.candidates)
            shift = REDRAWN if look is Look.FULL else 0
            samples = (candidate(prompt, seed, shift, sampling, version) for seed in seeds)
            groups.append(Group(prompt, tuple(samples)))
        return groups

    def _rewards(self, groups: Sequence[Group]) -> list[Floats]:
        """One row of rewards per group; all samples of all groups are of one version."""
        prompts = [group.prompt for group in groups for _ in group.samples]
        with self._holding(groups[0].samples[0].version):
            images = self.learner.pictures(groups)
        reward = self.config.reward.only_reward(self.learner.world.reward)
        return list(self.learner.pool.score(reward, images, prompts).total.reshape(len(groups), -1))

    @contextmanager
    def _holding(self, version: int) -> Iterator[None]:
        """Use the behaviour weights of a version in the model inside the block."""
        theta = self.learner.trainer.sets.theta
        trained = {name: parameter.data for name, parameter in theta.items()}
        try:
            for name, parameter in theta.items():
                parameter.data = self._kept[version][name]
            yield
        finally:
            for name, parameter in theta.items():
                parameter.data = trained[name]


def candidate(prompt: Prompt, seed: int, shift: int, sampling: Sampling, version: int) -> Sample:
    """A sample that starts from the noise of `seed`; `shift` changes the noise of its steps."""
    made_on = Version(version)
    return Sample(prompt=prompt.id, seed=seed + shift, sampling=sampling, version=made_on, shared_start=seed)


def run_seed(config: RunConfig, settings: StalenessSettings, path: Path) -> None:
    """Train to the last checkpoint, measuring at each; after each the result so far is beside `path` as .part."""
    use_device(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    checkpoints: list[Checkpoint] = []
    with console.status("loading") as status, scorer(config.reward, config.model.device) as pool:
        learner = Learner(config, pool)
        measured = Measured(learner, settings)
        for version in range(settings.checkpoints[-1] + 1):
            measured.reach(version)
            if version in settings.checkpoints:
                status.update(f"seed {config.seed}: looking back from iteration {version}")
                checkpoints.append(measured.checkpoint(version))
                merge.write(path.with_suffix(".part"), result_of(learner, settings, checkpoints, started))
                print_checkpoint(config.seed, checkpoints[-1], time.monotonic() - started)
            if version < settings.checkpoints[-1]:
                status.update(f"seed {config.seed}: iteration {version + 1} of {settings.checkpoints[-1]}")
                learner.iterate(version)
    path.with_suffix(".part").replace(path)


def result_of(
    learner: Learner, settings: StalenessSettings, checkpoints: Sequence[Checkpoint], started: float
) -> StalenessResult:
    return StalenessResult(
        family=learner.adapter.family,
        loss=learner.config.algorithm.kind,
        seed=learner.config.seed,
        config=learner.config.model_dump(mode="json"),
        settings=settings.model_dump(mode="json"),
        checkpoints=tuple(checkpoints),
        seconds=time.monotonic() - started,
        **provenance(),
    )


def print_checkpoint(seed: int, found: Checkpoint, seconds: float) -> None:
    for entry in found.lagged:
        shown = "  ".join(
            f"{name} {'-' if value is None else f'{value:.3f}'}"
            for name in entry.ranking.__struct_fields__
            for value in [getattr(entry.ranking, name)]
        )
        console.print(
            f"seed {seed}  iteration {found.iteration:3d}  {seconds:6.1f} s  reward {found.reward:.3f}  "
            f"{entry.look.value:5s} lag {entry.lag}  {shown}",
            soft_wrap=True,
        )
