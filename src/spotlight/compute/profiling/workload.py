"""Workload of a profiled model: samples to denoise and to train on, and a published set of weights."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from spotlight.compute.profiling.subject import RUN_SEED, ProfiledModel
from spotlight.compute.rollout.denoise import Rollout
from spotlight.compute.train.config import FlowGrpoConfig
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.objectives import objective
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.compute.weights.store import NodeStore, StoredWeights
from spotlight.control.pipeline.tsp import Pair
from spotlight.core.types import PromptId, Sample, SamplerKind, Sampling, Version, Window
from spotlight.core.work import WeightsId

STEPS = 10
SHARED_MEMORY = Path("/dev/shm")


def samples(subject: ProfiledModel, batch: int) -> list[Sample]:
    """Samples trained on at step 1 of their schedule; step 0, which is timed for denoising, draws no noise."""
    window = Window(1, 1)
    sampling = Sampling(steps=STEPS, size=subject.size, sampler=SamplerKind.FLOW_SDE, noise_level=0.7, window=window)
    return [
        Sample(prompt=PromptId("profile"), seed=seed, sampling=sampling, version=Version(0)) for seed in range(batch)
    ]


def sigmas(subject: ProfiledModel) -> list[float]:
    sigmas: list[float] = subject.adapter.schedule(subject.size, STEPS).tolist()
    return sigmas


def backward(subject: ProfiledModel, batch: int) -> Callable[[], object]:
    """A function that adds the gradients of one timestep of `batch` samples, as the trainer does."""
    flow_grpo = objective(FlowGrpoConfig(), RUN_SEED)
    experience = _experience(subject, batch)
    rows = [Pair(sample, 0) for sample in range(batch)]

    def run() -> None:
        loss_B = flow_grpo.rows(subject.adapter, subject.trainer.sets, experience, rows).loss_B
        (loss_B.sum() / batch).backward()

    return run


def _experience(subject: ProfiledModel, batch: int) -> Experience:
    """Finished samples, half of them with a positive advantage."""
    device, shape = subject.adapter.device, subject.adapter.latent_shape(subject.size)
    path_BKSC = torch.randn(batch, 2, *shape, device=device)
    rollout = Rollout(
        samples=tuple(samples(subject, batch)),
        x0_BSC=path_BKSC[:, 1],
        path_BKSC=path_BKSC,
        log_prob_BK=torch.zeros(batch, 1, device=device),
        mean_BKSC=path_BKSC[:, :1],
    )
    return Experience(
        rollout=rollout,
        cond=subject.conditions(batch),
        uncond=None,
        advantage_B=torch.linspace(-1, 1, batch, device=device),
        kept_B=torch.ones(batch, dtype=torch.bool, device=device),
        iteration=0,
    )


@contextmanager
def published(subject: ProfiledModel) -> Iterator[tuple[NodeStore, StoredWeights]]:
    """Rollout weights, published as the trainer does."""
    with tempfile.TemporaryDirectory() as folder:
        store = NodeStore(Path(folder))
        state = subject.trainer.sets[WeightSet.OLD]
        yield store, store.publish(WeightsId(Version(1)), subject.adapter.family, state, subject.base_digest)


@contextmanager
def node_folder() -> Iterator[Path]:
    """A temporary folder where a node would store published weights."""
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as folder:
        yield Path(folder)
