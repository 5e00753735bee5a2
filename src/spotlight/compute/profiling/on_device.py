"""Operations that the model's device computes: denoising, training, decoding, changing weights."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from spotlight.compute.evaluation import to_images
from spotlight.compute.profiling.series import adapters_of, by_batch, measured, one_figure, timed_by_batch
from spotlight.compute.profiling.slot_at_work import SlotAtWork
from spotlight.compute.profiling.stopwatch import Stopwatch, point
from spotlight.compute.profiling.subject import RUN_SEED, ProfiledModel
from spotlight.compute.profiling.workload import STEPS, backward, published, samples, sigmas
from spotlight.compute.rollout.noise import initial_noise
from spotlight.compute.rollout.step import RowPlace, advance
from spotlight.compute.train.recomputation import blocks_of, recompute_first
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.compute.weights.digest import fingerprint
from spotlight.control.profiles import Operation, Times, derive
from spotlight.control.profiles.timings import BY_BATCH, ONE_FIGURE
from spotlight.core.errors import InputError


def denoise_step(subject: ProfiledModel, watch: Stopwatch) -> Times:
    with subject.rolling_out():
        points = by_batch(subject, watch, Operation.DENOISE_STEP, partial(_forward, subject))
    how = f"One step of the rollout engine without guidance, {subject.kernels}{adapters_of(subject)}."
    return Times(interpolation=BY_BATCH, series=(measured(how, points), derive.crews(points, subject.tokens)))


def preview_step(subject: ProfiledModel, watch: Stopwatch) -> Times:
    if not subject.resident.rounds or subject.fast is not None:
        raise InputError("previews compute as rollouts do, so a preview step takes as long as any other step")
    how = f"As denoise_step{adapters_of(subject)}, which are rounded to the type of the base weights."
    return _of_previews(subject, watch, how)


def fp8_preview_step(subject: ProfiledModel, watch: Stopwatch) -> Times:
    if subject.fast is None or not subject.fast.has_fp8:
        raise InputError("the model has no weights in fp8; profile it with --speed fp8")
    return _of_previews(subject, watch, f"As denoise_step{adapters_of(subject)}, linear layers in fp8.")


def _of_previews(subject: ProfiledModel, watch: Stopwatch, how: str) -> Times:
    with subject.rolling_out(is_exact=False):
        points = by_batch(subject, watch, Operation.DENOISE_STEP, partial(_forward, subject))
    return Times(interpolation=BY_BATCH, series=(measured(how, points), derive.crews(points, subject.tokens)))


def _forward(subject: ProfiledModel, batch: int) -> Callable[[], object]:
    """One step of `batch` rows, as a function to time."""
    drawn, schedule = samples(subject, batch), sigmas(subject)
    x_BSC = initial_noise(RUN_SEED, drawn, subject.adapter.latent_shape(subject.size)).to(subject.adapter.device)
    places = [RowPlace(sample, 0, schedule, RUN_SEED) for sample in drawn]
    cond = subject.conditions(batch)
    return lambda: advance(subject.adapter, x_BSC, places, cond, None, rows=batch)


def denoising(subject: ProfiledModel, watch: Stopwatch) -> Times:
    """Denoise whole samples, so that their beginning and end are part of every figure."""
    if subject.world is None:
        raise InputError(f"'{subject.model}' has no reward of its own to compute; measure it without --beside.")
    points = []
    with SlotAtWork(subject, subject.world) as slot:
        for batch in subject.batches[Operation.DENOISE_STEP]:
            seconds = watch.times(partial(slot.wave, batch))
            points.append(point([each / STEPS for each in seconds], batch))
    how = (
        f"A step's share of whole samples of {STEPS} steps through the rollout engine, without guidance, eager; they "
        "commit their flights, and are decoded and judged meanwhile on the same cores, by one thread each."
    )
    return Times(interpolation=BY_BATCH, series=(measured(how, points), derive.crews(points, subject.tokens)))


def train_timestep(subject: ProfiledModel, watch: Stopwatch) -> Times:
    recomputed = recompute_least(subject) if subject.fast is not None else None
    points = by_batch(subject, watch, Operation.TRAIN_TIMESTEP, lambda batch: backward(subject, batch))
    subject.trainer.optimizer.zero_grad(set_to_none=True)
    checkpointed = ", checkpointed" if subject.trainer.train_config.gradient_checkpointing else ""
    if recomputed is not None:
        checkpointed = f", {recomputed} of {len(blocks_of(subject.adapter.transformer))} blocks computed again"
    how = (
        "Forward and backward with the Flow-GRPO loss, which needs no forward of other weights, "
        f"{subject.kernels}{adapters_of(subject)}{checkpointed}."
    )
    return timed_by_batch(how, points)


def recompute_least(subject: ProfiledModel) -> int:
    """Compute as few blocks again as the largest batch leaves memory for; return their number."""
    transformer: Any = subject.adapter.transformer
    blocks = len(blocks_of(transformer))
    for again in (0, blocks // 3, 2 * blocks // 3, blocks):
        transformer.disable_gradient_checkpointing()
        recompute_first(transformer, again)
        with suppress(torch.OutOfMemoryError):
            backward(subject, max(subject.batches[Operation.TRAIN_TIMESTEP]))()
            return again
        subject.trainer.optimizer.zero_grad(set_to_none=True)
        if subject.adapter.device.type == "cuda":
            torch.cuda.empty_cache()
    return blocks


def optimizer_step(subject: ProfiledModel, watch: Stopwatch) -> Times:
    trainer = subject.trainer
    backward(subject, 1)()

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(trainer.sets.theta.values(), trainer.train_config.max_grad_norm)
        trainer.optimizer.step()
        trainer.sets.follow(WeightSet.EMA, trainer.train_config.ema_decay)
        fingerprint({name: parameter.data for name, parameter in trainer.sets.theta.items()})

    one_rank = point(watch.times(update))
    trainer.optimizer.zero_grad(set_to_none=True)
    how = (
        f"Clipping, AdamW, the average and the fingerprint of {subject.trained_bytes / 1e6:.0f} MB of trained weights."
    )
    series = (measured(how, [one_rank]), derive.gangs(one_rank, subject.trained_bytes))
    return Times(interpolation=ONE_FIGURE, series=series)


def eager_seconds(subject: ProfiledModel, watch: Stopwatch) -> str:
    """A denoising step and a training timestep of the largest batches, in words."""
    found = []
    for operation, prepared in ((Operation.DENOISE_STEP, _forward), (Operation.TRAIN_TIMESTEP, backward)):
        batch = max(subject.batches[operation])
        seconds = point(watch.times(prepared(subject, batch)), batch).p50
        found.append(f"{operation.value} {seconds:.4f} s at {batch} rows")
    subject.trainer.optimizer.zero_grad(set_to_none=True)
    return ", ".join(found)


def decode(subject: ProfiledModel, watch: Stopwatch) -> Times:
    @torch.no_grad()
    def draw(x0_BSC: torch.Tensor) -> None:
        to_images(subject.adapter.decode(x0_BSC, subject.size))

    def pictures(batch: int) -> Callable[[], object]:
        x0_BSC = torch.randn(batch, *subject.adapter.latent_shape(subject.size), device=subject.adapter.device)
        return lambda: draw(x0_BSC)

    points = by_batch(subject, watch, Operation.DECODE, pictures)
    return timed_by_batch(
        "Latents to pictures in host memory, in fp32, one picture at a time where there is a VAE.", points
    )


def role_switch(subject: ProfiledModel, watch: Stopwatch) -> Times:
    with published(subject) as (store, stored):
        subject.resident.load(store.open(stored.weights))

        def switch() -> None:
            with subject.resident.use(stored.weights):
                pass

        seconds = watch.times(switch)
        subject.resident.drop(stored.weights)
    return one_figure("The model takes up a published set and gives it back; nothing is copied.", seconds)
