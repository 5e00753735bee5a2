"""Batches of image-timesteps of one trainer, timed in rounds."""

import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from benchmarks.lib.provenance import provenance
from benchmarks.tsp.figures import Arm, SizeRun, earlier, present
from spotlight.compute.meter import BatchReading, DeviceMeter
from spotlight.compute.models.families import usable_device
from spotlight.compute.profiling.provenance import use_tf32, use_threads
from spotlight.compute.profiling.subject import RUN_SEED, ProfiledModel, QwenImageShape, random_qwen_image
from spotlight.compute.rollout.denoise import Rollout, roll_out
from spotlight.compute.train.config import FlowGrpoConfig
from spotlight.compute.train.experience import Experience
from spotlight.control.pipeline.tsp import BatchesOver
from spotlight.core.types import PromptId, Sample, SamplerKind, Sampling, Size, Version, Window

STEPS = 20
WIDE = 1024
"""Side in pixels from which rounds are long: fewer rounds, and the largest batch once, if time allows."""
LOSS = FlowGrpoConfig(clip=0.2)
"""A wide clip: in bf16 a replayed step differs from the recorded one by more than the default clip, and rows without a
gradient are multiplications by zero, which a GPU does faster."""
SMALL = QwenImageShape(
    transformer={
        "num_layers": 2, "attention_head_dim": 16, "num_attention_heads": 4, "joint_attention_dim": 16,
        "axes_dims_rope": (4, 6, 6),
    },
    vae={"base_dim": 8, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1},
)  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """Arms of one size."""

    arms: tuple[Arm, ...]
    rounds: int
    least_rows: int
    """Least rows per timing of an arm: small batches are timed in pairs."""
    at_last: tuple[Arm, ...] = ()
    """Arms timed once, after the rounds."""


def plan_of(pixels: int, is_first: bool, rounds: int | None) -> Plan:
    batches = [Arm(batch) for batch in (1, 2, 4, 8, 16)]
    control = [Arm(8, BatchesOver.SAMPLES)] if is_first else []
    if pixels < WIDE:
        return Plan((*batches, *control), rounds or 5, least_rows=2)
    return Plan((*batches[:-1], *control), rounds or 3, least_rows=1, at_last=(batches[-1],))


class Bench:
    """One trainer, pictures of one size, and the remaining time."""

    def __init__(self, subject: ProfiledModel, pixels: int, ends_at: float) -> None:
        self._subject = subject
        self._size = Size(pixels, pixels)
        self._ends_at = ends_at
        self._meter = DeviceMeter(subject.adapter.device)
        self._pictures: dict[int, Rollout] = {}

    def run(self, plan: Plan) -> SizeRun:
        self._roll_out(plan)
        self._subject.trainer.begin(0)
        found = SizeRun(**provenance(), settings=self._settings(), resident_gib=self._resident())
        fitting = [arm for arm in plan.arms if self._warm_up(arm, plan, found)]
        for number in range(plan.rounds):
            turn = number % len(fitting)
            order = [*fitting[turn:], *fitting[:turn]]
            if sum(found.warm_up_s[arm.name] for arm in order) > self._ends_at - time.monotonic():
                break
            for arm in order:
                found.seconds.setdefault(arm.name, []).append(self._time(arm, plan).seconds / self._rows(arm, plan))
        for arm in plan.at_last:
            half_s = found.warm_up_s.get(Arm(arm.batch // 2).name, 0.0)
            if 4.2 * half_s > self._ends_at - time.monotonic():
                found.left_out[arm.name] = "there was no time for it"
            elif self._warm_up(arm, plan, found):
                found.seconds[arm.name] = [self._time(arm, plan).seconds / self._rows(arm, plan)]
        return found

    def _roll_out(self, plan: Plan) -> None:
        """Roll out one picture with all arms' timesteps, and several of one timestep for batches over samples."""
        arms = (*plan.arms, *plan.at_last)
        longest = max(self._rows(arm, plan) for arm in arms if arm.over is BatchesOver.PAIRS)
        most = max((arm.batch for arm in arms if arm.over is BatchesOver.SAMPLES), default=0)
        for count, window in ((1, longest), (most, 1)):
            if count:
                samples, cond = [self._sample(seed, window) for seed in range(count)], self._subject.conditions(count)
                self._pictures[count] = roll_out(self._subject.adapter, samples, cond, None, RUN_SEED)

    def _sample(self, seed: int, window: int) -> Sample:
        sampling = Sampling(
            steps=STEPS, size=self._size, sampler=SamplerKind.FLOW_SDE, noise_level=0.7, window=Window(1, window)
        )
        return Sample(prompt=PromptId("tsp"), seed=seed, sampling=sampling, version=Version(0))

    def _rows(self, arm: Arm, plan: Plan) -> int:
        return arm.batch if arm.over is BatchesOver.SAMPLES else max(arm.batch, plan.least_rows)

    def _experience(self, arm: Arm, plan: Plan) -> Experience:
        """The arm's pictures, cut to its timesteps."""
        count = arm.batch if arm.over is BatchesOver.SAMPLES else 1
        window, made = self._rows(arm, plan) // count, self._pictures[count]
        device = self._subject.adapter.device
        rollout = Rollout(
            samples=tuple(self._sample(sample.seed, window) for sample in made.samples),
            x0_BSC=made.x0_BSC,
            path_BKSC=made.path_BKSC[:, : window + 1],
            log_prob_BK=made.log_prob_BK[:, :window],
            mean_BKSC=made.mean_BKSC[:, :window],
        )
        return Experience(
            rollout=rollout,
            cond=self._subject.conditions(count),
            uncond=None,
            advantage_B=torch.ones(count, device=device),
            kept_B=torch.ones(count, dtype=torch.bool, device=device),
            iteration=0,
        )

    def _time(self, arm: Arm, plan: Plan) -> BatchReading:
        """Time one update's gradient, as a rank accumulates it."""
        trainer, experience = self._subject.trainer, self._experience(arm, plan)
        trainer.train_config = trainer.train_config.model_copy(
            update={"micro_batch": arm.batch, "batches_over": arm.over}
        )
        trainer.begin(len(experience), places=self._rows(arm, plan))
        self._meter.start()
        trainer.add(experience, range(len(experience)))
        return self._meter.stop()

    def _warm_up(self, arm: Arm, plan: Plan, found: SizeRun) -> bool:
        """Whether the arm fits; record its peak memory and its first time."""
        try:
            reading = self._time(arm, plan)
        except torch.OutOfMemoryError:
            found.left_out[arm.name] = "the device has too little memory for it"
            self._subject.trainer.begin(0)
            self._meter.release()
            return False
        found.warm_up_s[arm.name] = reading.seconds
        found.gradient_norm[arm.name] = self._gradient_norm()
        if reading.peak:
            found.peak_gib[arm.name] = reading.peak / 2**30
        norm = found.gradient_norm[arm.name]
        line = f"{self._size.width} px, {arm.name}: {reading.seconds:.2f} s at first, gradient norm {norm:.2e}"
        print(line, file=sys.stderr, flush=True)
        return True

    def _gradient_norm(self) -> float:
        gradients = [weight.grad for weight in self._subject.trainer.sets.theta.values() if weight.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    def _resident(self) -> float:
        device = self._subject.adapter.device
        return torch.cuda.memory_allocated(device) / 2**30 if device.type == "cuda" else 0.0

    def _settings(self) -> Mapping[str, str | float | bool]:
        adapter, train = self._subject.adapter, self._subject.trainer.train_config
        return {
            "parameters": sum(weight.numel() for weight in adapter.transformer.parameters()),
            "trained": sum(weight.numel() for weight in self._subject.trainer.sets.theta.values()),
            "lora_rank": 0 if train.lora is None else train.lora.rank,
            "tokens": adapter.latent_shape(self._size)[0],
            "gradient_checkpointing": train.gradient_checkpointing,
            "fp32_matmuls": torch.get_float32_matmul_precision(),
            "loss": LOSS.kind,
        }


def with_moments(subject: ProfiledModel) -> ProfiledModel:
    """Take a step with zero gradients, which puts the optimizer's moments in memory and applies only weight decay."""
    for weight in subject.trainer.sets.theta.values():
        weight.grad = torch.zeros_like(weight)
    subject.trainer.optimizer.step()
    subject.trainer.optimizer.zero_grad(set_to_none=True)
    return subject


def measure(args: Namespace) -> None:
    """Measure all sizes; the result is written after each, so that an interrupted measurement keeps it."""
    device = usable_device(args.device)
    use_threads(8 if args.device == "cuda" else 1)
    use_tf32(not args.no_tf32)
    began = time.monotonic()
    sizes: Sequence[int] = args.sizes
    shape = SMALL if args.model == "small" else None
    subject = with_moments(random_qwen_image(device, Size(sizes[0], sizes[0]), shape, algorithm=LOSS))
    print(f"the model is in memory after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    runs = earlier(args.out.with_suffix(".json")) if args.merge else {}
    for pixels in sizes:
        bench = Bench(subject, pixels, began + args.limit)
        runs[pixels] = bench.run(plan_of(pixels, pixels == sizes[0], args.rounds))
        present(runs, args.out, args.json and pixels == sizes[-1])
