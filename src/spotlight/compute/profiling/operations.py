"""One function per operation: times it with the code that a run uses, and describes how.

Invariant (tests/unit/test_profile_command.py): a measured figure is marked as measured and describes how. An operation
that cannot be measured here is cited or derived with its source, or left out with a reason.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import msgspec
import numpy as np
import torch

from spotlight.compute.profiling import cited
from spotlight.compute.profiling.company import Company
from spotlight.compute.profiling.on_device import (
    decode,
    denoise_step,
    denoising,
    fp8_preview_step,
    optimizer_step,
    preview_step,
    role_switch,
    train_timestep,
)
from spotlight.compute.profiling.series import by_batch, one_figure, timed_by_batch
from spotlight.compute.profiling.stopwatch import Stopwatch
from spotlight.compute.profiling.subject import QWEN_IMAGE, ProfiledModel
from spotlight.compute.profiling.workload import backward, node_folder, published
from spotlight.compute.profiling.writing import write_beside
from spotlight.compute.rewards.reward_pool import RewardPool
from spotlight.compute.train import checkpoint
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.compute.weights.resident import own_copy
from spotlight.compute.weights.store import NodeStore
from spotlight.control.profiles import Operation, Provenance, Times
from spotlight.core.errors import EnvironmentProblem, InputError, SpotlightError
from spotlight.core.file_copy import copy_file
from spotlight.core.types import Version
from spotlight.core.work import WeightsId


@dataclass(frozen=True)
class LeftOut:
    """Reason why an operation has no figures."""

    why: str


Measure = Callable[[ProfiledModel, Stopwatch], Times]


def measurements(
    subject: ProfiledModel, watch: Stopwatch, wanted: Sequence[Operation], company: Company | None = None
) -> Iterator[tuple[Operation, Times | LeftOut]]:
    """Measure the wanted operations in the order of `MEASURES`: cheap and important ones first."""
    for operation, measure in MEASURES.items():
        if operation not in wanted:
            continue
        try:
            yield operation, measure(subject, watch) if company is None else _in(company, operation, subject, watch)
        except torch.OutOfMemoryError:
            yield operation, LeftOut("the device has too little memory for it")
        except SpotlightError as problem:
            yield operation, LeftOut(str(problem))


def _in(company: Company, operation: Operation, subject: ProfiledModel, watch: Stopwatch) -> Times:
    """Measure as in a run: other slots of the machine compute or rest, and this slot's rewards are scored meanwhile."""
    measure = denoising if operation is Operation.DENOISE_STEP else MEASURES[operation]
    if operation not in BUSY:
        return measure(subject, watch)
    with company.at_work():
        times = measure(subject, watch)
    beside = f" Beside {company} at work."
    series = (
        msgspec.structs.replace(each, how=each.how + beside) if each.provenance is Provenance.MEASURED else each
        for each in times.series
    )
    return msgspec.structs.replace(times, series=tuple(series))


# -- weight transfers --------------------------------------------------------------------------------------------------


def publish(subject: ProfiledModel, watch: Stopwatch) -> Times:
    with tempfile.TemporaryDirectory() as folder:
        store, versions = NodeStore(Path(folder)), count(1)
        state = subject.trainer.sets[WeightSet.OLD]

        def write() -> None:
            weights = WeightsId(Version(next(versions)))
            store.publish(weights, subject.adapter.family, state, subject.base_digest)
            store.keep([weights])

        seconds = watch.times(write, warm_ups=0)
    how = f"{subject.trained_bytes / 1e6:.0f} MB of trained weights to the host, named and written to a local disk."
    return one_figure(how, seconds)


def node_fetch(subject: ProfiledModel, watch: Stopwatch) -> Times:
    with published(subject) as (_, stored), node_folder() as folder:
        node = NodeStore(folder)

        def fetch() -> None:
            copy_file(stored.path, folder / stored.path.name)
            subject.resident.load(node.open(stored.weights))
            subject.resident.drop(stored.weights)
            node.keep([])

        seconds = watch.times(fetch, warm_ups=0)
    how = "Copied from a local disk into shared memory, brought to the device and read back; no network."
    return one_figure(how, seconds)


def store_load(subject: ProfiledModel, watch: Stopwatch) -> Times:
    with published(subject) as (_, stored), node_folder() as folder:
        node = NodeStore(folder)
        copy_file(stored.path, folder / stored.path.name)

        def load() -> None:
            subject.resident.load(node.open(stored.weights))
            subject.resident.drop(stored.weights)

        seconds = watch.times(load, warm_ups=0)
    return one_figure("Brought from shared memory to the device and read back.", seconds)


def adopt(subject: ProfiledModel, watch: Stopwatch) -> Times:
    if subject.adapter.device.type == "cpu":
        raise InputError("on a CPU the pages of the store are the weights, so a trainer maps them like any worker")
    state, weights = subject.trainer.sets[WeightSet.OLD], WeightsId(Version(1))

    def take() -> None:
        subject.resident.adopt(weights, own_copy(state))
        subject.resident.drop(weights)

    return one_figure(
        "Copied beside the trained weights on their device, taken up by the model and read back.", watch.times(take)
    )


def peer_copy(subject: ProfiledModel, watch: Stopwatch) -> Times:
    if subject.model == QWEN_IMAGE:
        return cited.peer_copy_of_qwen_image()
    with published(subject) as (store, stored):

        def take() -> None:
            subject.resident.load(store.open(stored.weights))
            subject.resident.drop(stored.weights)

        seconds = watch.times(take)
    return one_figure("Taken from the node's shared memory, where a neighbour's copy is, and read back.", seconds)


def _make_moments(subject: ProfiledModel) -> None:
    """Take one update if there was none: a trainer has moments from its first update on."""
    optimizer = subject.trainer.optimizer
    if not optimizer.state:
        backward(subject, 1)()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def take_snapshot(subject: ProfiledModel, watch: Stopwatch) -> Times:
    _make_moments(subject)
    step = backward(subject, subject.batches[Operation.TRAIN_TIMESTEP][-1])
    step()
    with tempfile.TemporaryDirectory() as folder:
        written = write_beside(subject, step, Path(folder))
    subject.trainer.optimizer.zero_grad(set_to_none=True)
    how = (
        "Weights, their copies and the optimizer's moments, copied; and by what steps of training were longer, all "
        f"together, while they were written to a local disk: {written.held_s:.2f} and {written.lost_s:.2f} s."
    )
    return one_figure(how, [written.held_s + written.lost_s])


def save_checkpoint(subject: ProfiledModel, watch: Stopwatch) -> Times:
    _make_moments(subject)
    with tempfile.TemporaryDirectory() as folder:
        step = Path(folder) / "step"
        seconds = watch.times(lambda: checkpoint.save(subject.trainer, step, subject.base_digest), warm_ups=0)
    return one_figure("Weights, their copies and the optimizer's moments, copied and forced to a local disk.", seconds)


# -- processes ---------------------------------------------------------------------------------------------------------


def worker_start(subject: ProfiledModel, watch: Stopwatch) -> Times:
    """Time one process at a time, without a warm-up: the first uses the file cache in its present state."""
    if subject.model == QWEN_IMAGE:
        return cited.worker_start_of_qwen_image()
    command = [
        sys.executable, "-m", "spotlight.compute.profiling.start", subject.model, str(subject.adapter.device),
    ]  # fmt: skip

    def start() -> None:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip() or "no error output").splitlines()[-1]
            raise EnvironmentProblem(
                f"a worker could not be started ({reason}); free memory, because the model is loaded twice here."
            )

    seconds = watch.times(start, warm_ups=0)
    how = "A new process imports everything, builds the model and its optimizer; no worker is forked."
    return one_figure(how, seconds)


def reward(subject: ProfiledModel, watch: Stopwatch) -> Times:
    world = subject.world
    if world is None:
        return cited.reading()
    prompts = world.held_out(max(subject.batches[Operation.REWARD]))
    images = [world.render(prompt, np.random.default_rng(number)) for number, prompt in enumerate(prompts)]
    with RewardPool(1) as pool:
        pool.version(world.reward)
        points = by_batch(
            subject,
            watch,
            Operation.REWARD,
            lambda batch: lambda: pool.score(world.reward, images[:batch], prompts[:batch]),
        )
    return timed_by_batch(f"'{world.reward}' of rendered pictures, in one reward process with one thread.", points)


def regroup(subject: ProfiledModel, watch: Stopwatch) -> Times:
    return cited.regroup_on_devices() if subject.adapter.device.type == "cuda" else cited.regroup_of_tiny()


MEASURES: Mapping[Operation, Measure] = {
    Operation.DENOISE_STEP: denoise_step,
    Operation.PREVIEW_STEP: preview_step,
    Operation.FP8_PREVIEW_STEP: fp8_preview_step,
    Operation.TRAIN_TIMESTEP: train_timestep,
    Operation.OPTIMIZER_STEP: optimizer_step,
    Operation.DECODE: decode,
    Operation.REGROUP: regroup,
    Operation.PEER_COPY: peer_copy,
    Operation.REWARD: reward,
    Operation.ROLE_SWITCH: role_switch,
    Operation.PUBLISH: publish,
    Operation.NODE_FETCH: node_fetch,
    Operation.STORE_LOAD: store_load,
    Operation.ADOPT: adopt,
    Operation.SNAPSHOT: take_snapshot,
    Operation.CHECKPOINT: save_checkpoint,
    Operation.WORKER_START: worker_start,
}

BUSY = frozenset(
    {Operation.DENOISE_STEP, Operation.TRAIN_TIMESTEP, Operation.OPTIMIZER_STEP, Operation.DECODE, Operation.REWARD}
)
"""Operations that run while other slots roll out or preview; during weight transfers the other slots wait."""
