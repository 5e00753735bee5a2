"""Forwards and training of one model, eager and fast, timed alternately in one process."""

import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.lib.figures import Figure
from spotlight.compute.fast.attention import AttentionKernel
from spotlight.compute.fast.fast_model import FastModel, accelerate
from spotlight.compute.fast.kernel_choice import fastest_kernel, usable_kernels
from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.models.config import ModelConfig
from spotlight.compute.models.loaded import load_source
from spotlight.compute.models.pipeline_adapter import PipelineAdapter
from spotlight.compute.models.sources import resolve
from spotlight.compute.profiling.subject import ProfiledModel, QwenImageShape, random_qwen_image
from spotlight.compute.profiling.workload import backward, samples
from spotlight.compute.rollout.denoise import roll_out
from spotlight.compute.train.config import FlowGrpoConfig
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.objectives import objective
from spotlight.compute.train.recomputation import recompute_first
from spotlight.control.pipeline.tsp import Pair
from spotlight.core.types import Size
from spotlight.node.equipment import own_device

TEXT, PADDING = 96, 32
"""Width of the text, and the part of it that is padding for the product."""
REPEATS, WARM_UPS = 5, 2
TINY = QwenImageShape(
    transformer={"num_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2, "axes_dims_rope": (4, 6, 6)},
    vae={"base_dim": 8},
)
Details = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """Images of one forward."""

    edge: int
    rows: int

    @property
    def name(self) -> str:
        return f"{self.edge}_b{self.rows}"

    @property
    def size(self) -> Size:
        return Size(self.edge, self.edge)


SHAPES = {False: (Shape(512, 8), Shape(1280, 1), Shape(512, 1)), True: (Shape(64, 2), Shape(128, 1), Shape(64, 1))}
TRAINED = {False: ((8, 0), (4, 0), (8, 20)), True: ((2, 0), (1, 0))}
"""Rows, and blocks that are computed again, of fast training: the fastest that fits counts."""


class Clock:
    """Seconds of an action on the device, as the median of a few repeats."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def seconds(self, action: Callable[[], object], repeats: int = REPEATS) -> list[float]:
        for _ in range(WARM_UPS):
            action()
        return [self._once(action) for _ in range(repeats)]

    def _once(self, action: Callable[[], object]) -> float:
        self._wait()
        began = time.perf_counter()
        action()
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def release(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)


def measure(tiny: bool, stage: str) -> tuple[dict[str, Figure], Details]:
    device = own_device("cpu" if tiny else "cuda:0")
    clock, figures, details = Clock(device), dict[str, Figure](), Details()
    peak = _peak(clock, 256 if tiny else 8192)
    figures["matmul_peak"] = Figure.single(peak / 1e12, "TFLOP/s of a square matmul in the model's type")
    if stage in ("all", "forward"):
        Forwards(clock, tiny, peak, figures, details).run()
        clock.release()
    if stage in ("all", "train"):
        Training(clock, tiny, figures, details).run()
    return figures, details


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _peak(clock: Clock, edge: int) -> float:
    dtype = torch.bfloat16 if clock.device.type == "cuda" else torch.float32
    a, b = (torch.randn(edge, edge, device=clock.device, dtype=dtype) for _ in range(2))
    return 2 * edge**3 / statistics.median(clock.seconds(lambda: a @ b, 20))


def _kernel(adapter: PipelineAdapter, shape: Shape) -> AttentionKernel:
    weight = next(adapter.transformer.parameters())
    tokens = adapter.geometry.tokens(shape.size) + TEXT
    kernels = usable_kernels(weight.device, weight.dtype)
    return fastest_kernel(kernels, shape.rows, tokens, PADDING, adapter.transformer)


def _ratio(slow: list[float], fast: list[float], unit: str) -> Figure:
    """Ratio of medians; the range is that of the extremes."""
    middle = statistics.median(slow) / statistics.median(fast)
    return Figure(value=middle, low=min(slow) / max(fast), high=max(slow) / min(fast), unit=unit)


class Forwards:
    """Rollout forwards without adapters: eager diffusers, then the same model made fast."""

    def __init__(self, clock: Clock, tiny: bool, peak: float, figures: dict[str, Figure], details: Details) -> None:
        self.clock, self.tiny, self.peak, self.figures, self.details = clock, tiny, peak, figures, details
        name = "random-tiny:qwen-image" if tiny else "random:qwen-image"
        device = str(clock.device)
        adapter = load_source(resolve(name), ModelConfig(name=name, device=device), device).adapter
        assert isinstance(adapter, PipelineAdapter)
        self.adapter = adapter
        adapter.transformer.requires_grad_(False)
        self.width = int(adapter.transformer.config.joint_attention_dim)  # type: ignore[union-attr, arg-type]

    @torch.no_grad()
    def run(self) -> None:
        shapes = SHAPES[self.tiny]
        eager = {shape: self.clock.seconds(partial(self._eager, shape)) for shape in shapes}
        references = {shape: self._eager(shape) for shape in shapes}
        flops = {shape: self._flops(shape) for shape in shapes}
        kernel = _kernel(self.adapter, shapes[1])
        _say(f"eager {self._milliseconds(eager)}; attention: {kernel.value}")
        fast = self.adapter.fast = accelerate(self.adapter.transformer, kernel, fp8_previews=True)
        compiled = {shape: self._timed(fast, shape) for shape in shapes}
        _say(f"fast {self._milliseconds(compiled)}")
        previews = {shape: self._timed(fast, shape, is_preview=True) for shape in shapes[:2]}
        _say(f"fp8 {self._milliseconds(previews)}")
        self._report(eager, compiled, previews, flops)
        for shape in shapes:
            with fast.rolling_out("own", is_preview=False):
                found = self._velocity(shape, padding=0)
            wanted = references[shape].float()
            self.details[f"difference_{shape.name}"] = float((found - wanted).norm() / wanted.norm())

    def _report(
        self,
        eager: Mapping[Shape, list[float]],
        compiled: Mapping[Shape, list[float]],
        previews: Mapping[Shape, list[float]],
        flops: Mapping[Shape, int],
    ) -> None:
        for shape, seconds in compiled.items():
            share = [flops[shape] / each / self.peak for each in seconds]
            name = str(shape.edge) if shape.edge > SHAPES[self.tiny][0].edge else shape.name
            self.figures[f"rollout_speedup_{shape.name}"] = _ratio(eager[shape], seconds, "times eager diffusers")
            self.figures[f"peak_share_{name}"] = Figure.median(share, "of the matmul peak")
            self.details[shape.name] = {
                "eager_ms": [1e3 * each for each in eager[shape]],
                "fast_ms": [1e3 * each for each in seconds],
                "fp8_ms": [1e3 * each for each in previews.get(shape, [])],
                "tera_operations": flops[shape] / 1e12,
            }
        batch, wide = SHAPES[self.tiny][:2]
        unit = "times the compiled forward in bf16"
        self.figures["preview_fp8_speedup"] = _ratio(compiled[batch], previews[batch], unit)
        self.figures[f"preview_fp8_speedup_{wide.edge}"] = _ratio(compiled[wide], previews[wide], unit)

    def _timed(self, fast: FastModel, shape: Shape, is_preview: bool = False) -> list[float]:
        with fast.rolling_out("own", is_preview):
            return self.clock.seconds(lambda: self._velocity(shape))

    def _inputs(self, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
        drawn = torch.Generator(self.clock.device).manual_seed(shape.edge + shape.rows)
        tokens, channels = self.adapter.latent_shape(shape.size)
        x = torch.randn(shape.rows, tokens, channels, device=self.clock.device, generator=drawn)
        text = torch.randn(shape.rows, TEXT, self.width, device=self.clock.device, generator=drawn)
        return x, text, torch.full((shape.rows,), 0.5, device=self.clock.device)

    def _eager(self, shape: Shape) -> Tensor:
        """Diffusers' own call for prompts of the full width."""
        x, text, sigma = self._inputs(shape)
        dtype = next(self.adapter.transformer.parameters()).dtype
        output: Tensor = self.adapter.transformer(
            hidden_states=x.to(dtype),
            encoder_hidden_states=text.to(dtype),
            timestep=sigma.to(dtype),
            img_shapes=[[(1, *self.adapter.geometry.grid(shape.size))]] * shape.rows,
            return_dict=False,
        )[0]
        return output

    def _velocity(self, shape: Shape, padding: int = PADDING) -> Tensor:
        """The product's velocity, with padded text."""
        x, text, sigma = self._inputs(shape)
        mask = torch.ones(shape.rows, TEXT, dtype=torch.bool, device=self.clock.device)
        mask[:, TEXT - padding :] = False
        dtype = next(self.adapter.transformer.parameters()).dtype
        return self.adapter.velocity(x, sigma, ConditionBatch(text.to(dtype), mask), None, 1.0, shape.size)

    def _flops(self, shape: Shape) -> int:
        with FlopCounterMode(display=False) as counter:
            self._eager(shape)
        return int(counter.get_total_flops())

    def _milliseconds(self, seconds: Mapping[Shape, list[float]]) -> str:
        return ", ".join(f"{shape.name} {1e3 * statistics.median(each):.1f} ms" for shape, each in seconds.items())


class Training:
    """Forward and backward with adapters, and rollouts with them; then the ratio before the first update."""

    def __init__(self, clock: Clock, tiny: bool, figures: dict[str, Figure], details: Details) -> None:
        self.clock, self.tiny, self.figures, self.details = clock, tiny, figures, details
        self.shape = SHAPES[tiny][0]
        self.subject: ProfiledModel = random_qwen_image(clock.device, self.shape.size, TINY if tiny else None)
        adapter = self.subject.adapter
        assert isinstance(adapter, PipelineAdapter)
        self.adapter = adapter

    def run(self) -> None:
        rows = self.shape.rows
        # Without padding diffusers needs no mask, and uses flash attention.
        self.adapter.pads_text = False
        eager_roll = self.clock.seconds(self._rollout(rows))
        recompute_first(self.adapter.transformer, len(self.adapter.transformer.transformer_blocks))  # type: ignore[arg-type]
        eager = [each / rows for each in self.clock.seconds(backward(self.subject, rows))]
        _say(f"eager training {1e3 * statistics.median(eager):.1f} ms per image-timestep")
        self._drop_gradients()
        self.adapter.pads_text = True
        kernel = _kernel(self.adapter, self.shape)
        fast = self.adapter.fast = accelerate(self.adapter.transformer, kernel)
        with fast.rolling_out("own", is_preview=False):
            fast_roll = self.clock.seconds(self._rollout(rows))
        self.figures[f"rollout_speedup_{self.shape.name}_lora"] = _ratio(
            eager_roll, fast_roll, "times eager diffusers and peft, adapters of rank 64 on both sides"
        )
        tried = {case: seconds for case in TRAINED[self.tiny] if (seconds := self._fast_training(*case)) is not None}
        best = min(tried, key=lambda case: statistics.median(tried[case]))
        unit = f"times eager, checkpointed, {rows} rows: {best[0]} rows, {best[1]} blocks computed again"
        self.figures[f"train_speedup_{self.shape.edge}"] = _ratio(eager, tried[best], unit)
        self.details["training"] = {
            "eager_ms": [1e3 * each for each in eager],
            "fast_ms": {f"{case[0]} rows, {case[1]} again": [1e3 * each for each in tried[case]] for case in tried},
            "rollout_with_adapters_ms": {
                "eager": [1e3 * each for each in eager_roll],
                "fast": [1e3 * each for each in fast_roll],
            },
        }
        self._ratio_before_the_first_update(fast)

    def _rollout(self, rows: int) -> Callable[[], object]:
        tokens, channels = self.adapter.latent_shape(self.shape.size)
        x = torch.randn(rows, tokens, channels, device=self.clock.device)
        sigma = torch.full((rows,), 0.5, device=self.clock.device)
        cond = self.subject.conditions(rows)

        @torch.no_grad()
        def forward() -> None:
            self.adapter.velocity(x, sigma, cond, None, 1.0, self.shape.size)

        return forward

    def _fast_training(self, rows: int, again: int) -> list[float] | None:
        transformer: Any = self.adapter.transformer
        transformer.disable_gradient_checkpointing()
        recompute_first(transformer, again)
        self.clock.release()
        found = None
        with suppress(torch.OutOfMemoryError):
            found = [each / rows for each in self.clock.seconds(backward(self.subject, rows), 3)]
            held = torch.cuda.max_memory_allocated() / 2**30 if self.clock.device.type == "cuda" else 0.0
            _say(f"{rows} rows, {again} again: {1e3 * statistics.median(found):.1f} ms, {held:.0f} GiB")
        self._drop_gradients()
        return found

    def _drop_gradients(self) -> None:
        self.subject.trainer.optimizer.zero_grad(set_to_none=True)
        self.clock.release()

    def _ratio_before_the_first_update(self, fast: FastModel) -> None:
        """Roll out as a worker does, then compare log-probs as the first update does."""
        rows = 2 if self.tiny else 4
        recompute_first(self.adapter.transformer, len(self.adapter.transformer.transformer_blocks))  # type: ignore[arg-type]
        drawn, cond = samples(self.subject, rows), self.subject.conditions(rows)
        with fast.rolling_out("own", is_preview=False):
            rollout = roll_out(self.adapter, drawn, cond, None, 0)
        experience = Experience(
            rollout=rollout,
            cond=cond,
            uncond=None,
            advantage_B=torch.linspace(-1, 1, rows, device=self.clock.device),
            kept_B=torch.ones(rows, dtype=torch.bool, device=self.clock.device),
            iteration=0,
        )
        pairs = [Pair(sample, 0) for sample in range(rows)]
        learner = objective(FlowGrpoConfig(), 0, on_gpu=True)
        found = learner.rows(self.adapter, self.subject.trainer.sets, experience, pairs).figures
        self.figures["ratio_deviation"] = Figure.single(
            float(found["ratio_deviation"].max()), "largest |ratio - 1| before the first update"
        )
        self.figures["log_prob_gap"] = Figure.single(
            float(found["log_prob_gap"].max()), "largest difference of the rollout's own log-prob, per number"
        )
