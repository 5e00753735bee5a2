"""Measures the allocator's peaks from which the constants of the memory plan are derived; one process, one GPU.

    python -m benchmarks.memory.calibrate [--family qwen-image] [--out FILE] [--tiny] [--seconds 330]

Every case prints a line on standard error; the last line of standard output is one JSON object. It uses the product's
trainer, weight sets and adapters over random weights, and random conditionings instead of a text encoder. A case that
does not fit is reported as such. `--tiny` runs all cases with a tiny model on a CPU, where every peak is 0.
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from spotlight.compute.models.adapter import ConditionBatch, Conditioning
from spotlight.compute.models.family_registry import Family, family_named
from spotlight.compute.models.pipeline_adapter import PipelineAdapter, load_model
from spotlight.compute.models.random_weights import random_full, write_tiny
from spotlight.compute.rollout.denoise import Rollout
from spotlight.compute.train.config import LoraConfig, NftConfig, TrainConfig
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.trainer import Trainer
from spotlight.core.types import NO_WINDOW, Prompt, Sample, SamplerKind, Sampling, Size, Version

LORA = {"qwen-image": 64, "flux": 32, "sd3": 32}
TEXT = {"qwen-image": 40, "flux": 512, "sd3": 333}
"""Text tokens of a row before padding; 40 takes Qwen-Image's first bucket, 48."""
ALL = 10**6
"""Checkpointed blocks: all of them."""


@dataclass(frozen=True)
class Case:
    """One measurement: training over checkpointed blocks, a rollout's forward, or a decoding."""

    kind: str
    edge: int
    rows: int = 1
    blocks: int = 0
    text: int | None = None
    guided: bool = False

    def __str__(self) -> str:
        if self.kind == "decode":
            return f"decode_{self.edge}_b{self.rows}"
        if self.kind == "rollout":
            name = f"rollout_{self.edge}_b{self.rows}" + ("_guided" if self.guided else "")
        else:
            recomputed = "checkpointed" if self.blocks == ALL else f"blocks{self.blocks}" if self.blocks else "kept"
            name = f"train_{recomputed}_{self.edge}_b{self.rows}"
        return name if self.text is None else f"{name}_text{self.text}"


QWEN = (
    *(Case("train", 512, rows, ALL) for rows in (1, 2, 4, 8)),
    Case("train", 512, 2, ALL, text=180),
    Case("train", 1280, 1, ALL),
    *(Case("train", 512, rows) for rows in (1, 2)),
    Case("train", 512, 1, text=180),
    Case("train", 512, 2, 30),
    *(Case("rollout", 512, rows) for rows in (1, 8)),
    Case("rollout", 512, 8, guided=True),
    *(Case("rollout", 1280, rows) for rows in (1, 4)),
    Case("decode", 512),
    Case("decode", 1024),
    Case("decode", 1280),
    Case("decode", 1280, 2),
    # Last: it may not fit.
    Case("train", 512, 4),
)
OTHERS = (
    Case("train", 512, 1, ALL), Case("train", 512, 4, ALL), Case("train", 512, 1), Case("train", 512, 2),
    Case("rollout", 512, 4), Case("rollout", 1024, 2), Case("decode", 512), Case("decode", 1024),
)  # fmt: skip
TINY_EDGE = 64


class Probe:
    """Allocated bytes of one device; all are 0 on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._counts = device.type == "cuda"

    @property
    def now(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self._counts else 0

    def peak(self) -> int:
        """Peak since the last call."""
        if not self._counts:
            return 0
        torch.cuda.synchronize(self.device)
        found = torch.cuda.max_memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return found

    def reserved(self) -> dict[str, int]:
        """Bytes of the allocator with its gaps, and of the device with the context."""
        if not self._counts:
            return {"reserved": 0, "device_used": 0}
        free, total = torch.cuda.mem_get_info(self.device)
        return {"reserved": torch.cuda.max_memory_reserved(self.device), "device_used": total - free}

    def empty(self) -> None:
        if self._counts:
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)


class Bench:
    """One model with its adapters, trained and rolled out case by case."""

    def __init__(self, adapter: PipelineAdapter, family: Family, rank: int, probe: Probe) -> None:
        self.adapter, self.family, self.probe, self.rank = adapter, family, probe, rank
        self.before = probe.now
        train = TrainConfig(lora=LoraConfig(rank=rank, alpha=2.0 * rank), micro_batch=1)
        self.trainer = Trainer(adapter, train, NftConfig(), 0)
        self.calls: list[dict[str, int]] = []
        self._velocity = adapter.velocity

    def sizes(self) -> dict[str, int]:
        """Bytes by part, of the tensors themselves."""
        transformer: Any = self.adapter.transformer
        trained = list(self.trainer.sets.theta.values())
        state = self.trainer.optimizer.state.values()
        return {
            "base": sum(p.nbytes for p in transformer.parameters() if not p.requires_grad),
            "adapters": sum(p.nbytes for p in trained),
            "adapter_parameters": sum(p.numel() for p in trained),
            "weight_sets": sum(t.nbytes for name in self.trainer.sets.names for t in self.trainer.sets[name].values()),
            "optimizer": sum(t.nbytes for each in state for t in each.values() if torch.is_tensor(t) and t.is_cuda),
            "gradients": sum(p.grad.nbytes for p in trained if p.grad is not None),
            "vae": sum(p.nbytes for p in self.adapter._vae.parameters()),
            "allocated_at_start": self.before,
        }

    def run(self, case: Case) -> dict[str, Any]:
        self.probe.empty()
        size = Size(case.edge, case.edge)
        if case.kind == "train":
            return self._train(case, size)
        with torch.no_grad():
            return self._decode(case, size) if case.kind == "decode" else self._roll_out(case, size)

    def _train(self, case: Case, size: Size) -> dict[str, Any]:
        self._checkpoint(case.blocks)
        experience = self._experience(case, size)
        self.trainer.train_config = self.trainer.train_config.model_copy(update={"micro_batch": case.rows})
        found: dict[str, Any] = {}
        self.adapter.velocity = self._watched  # type: ignore[method-assign,assignment]
        try:
            # The first update allocates the optimizer's moments; the second one is a run's usual update.
            for turn in ("first", "steady"):
                self.calls.clear()
                self.probe.peak()
                self.trainer.begin(case.rows)
                start = self.probe.now
                self.trainer.add(experience, range(case.rows))
                backward, held = self.probe.peak(), self.probe.now
                self.trainer.finish(0)
                step = self.probe.peak()
                peaks = [call["peak"] for call in self.calls]
                found[turn] = {
                    "start": start, "calls": list(self.calls), "backward_peak": backward,
                    "after_backward": held, "step_peak": step, "peak": max(backward, step, *peaks),
                }  # fmt: skip
        finally:
            self.adapter.velocity = self._velocity  # type: ignore[method-assign]
            self.trainer.optimizer.zero_grad(set_to_none=True)
        return {"peak": found["steady"]["peak"], **found, **self.probe.reserved(), "sizes": self.sizes()}

    def _watched(self, *inputs: Any) -> torch.Tensor:
        self.probe.peak()
        enter = self.probe.now
        made = self._velocity(*inputs)
        grad = torch.is_grad_enabled()
        self.calls.append({"enter": enter, "peak": self.probe.peak(), "exit": self.probe.now, "grad": int(grad)})
        return made

    def _roll_out(self, case: Case, size: Size) -> dict[str, Any]:
        shape = self.adapter.latent_shape(size)
        x_BSC = torch.randn(case.rows, *shape, device=self.adapter.device)
        cond = self._condition(case)
        uncond = self._condition(case) if case.guided else None
        sigma_B = torch.full((case.rows,), 0.5, device=self.adapter.device)
        self.probe.peak()
        start = self.probe.now
        for _ in range(2):
            self.adapter.velocity(x_BSC, sigma_B, cond, uncond, 4.0 if case.guided else 1.0, size)
        return {"start": start, "peak": self.probe.peak(), **self.probe.reserved()}

    def _decode(self, case: Case, size: Size) -> dict[str, Any]:
        x0_BSC = torch.randn(case.rows, *self.adapter.latent_shape(size), device=self.adapter.device)
        self.probe.peak()
        start = self.probe.now
        self.adapter.decode(x0_BSC, size)
        return {"start": start, "peak": self.probe.peak(), **self.probe.reserved()}

    def _condition(self, case: Case) -> ConditionBatch:
        transformer: Any = self.adapter.transformer
        tokens = case.text or TEXT[self.family.name]
        config = transformer.config
        pooled = None
        if self.family.name != "qwen-image":
            pooled = torch.randn(int(config.pooled_projection_dim))
        embeds = torch.randn(tokens, int(config.joint_attention_dim))
        return self.adapter.collate([Conditioning(embeds, pooled)] * case.rows)

    def _experience(self, case: Case, size: Size) -> Experience:
        device, rows = self.adapter.device, case.rows
        sampling = Sampling(
            steps=10, size=size, sampler=SamplerKind.ODE, noise_level=0.0, window=NO_WINDOW, guidance=1.0
        )
        prompt = Prompt(text="a story").id
        samples = tuple(Sample(prompt=prompt, seed=seed, sampling=sampling, version=Version(0)) for seed in range(rows))
        shape = self.adapter.latent_shape(size)
        empty = torch.zeros(rows, 0, *shape, device=device)
        x0_BSC = torch.randn(rows, *shape, device=device)
        rollout = Rollout(
            samples=samples, x0_BSC=x0_BSC, path_BKSC=empty, log_prob_BK=empty[:, :, 0, 0], mean_BKSC=empty
        )
        advantage_B = torch.linspace(-1, 1, rows, device=device) + 0.1
        kept_B = torch.ones(rows, dtype=torch.bool, device=device)
        return Experience(
            rollout=rollout, cond=self._condition(case), uncond=None, advantage_B=advantage_B, kept_B=kept_B,
            iteration=0,
        )  # fmt: skip

    def _checkpoint(self, blocks: int) -> None:
        """Recompute the first blocks only."""
        transformer: Any = self.adapter.transformer
        lists = [getattr(transformer, name, ()) for name in ("transformer_blocks", "single_transformer_blocks")]
        chosen = {id(block) for block in [block for each in lists for block in each][:blocks]}

        def recompute(module: Any, *inputs: Any) -> Any:
            if id(module) in chosen:
                return checkpoint(module, *inputs, use_reentrant=False)
            return module(*inputs)

        if blocks == ALL:
            transformer.disable_gradient_checkpointing()
            transformer.enable_gradient_checkpointing()
        else:
            transformer.enable_gradient_checkpointing(recompute)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--family", nargs="*", default=["qwen-image", "flux", "sd3"])
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--tiny", action="store_true")
    arguments.add_argument("--seconds", type=float, default=330.0, help="no case starts after this time")
    args = arguments.parse_args()
    ends_at = time.monotonic() + args.seconds
    found: dict[str, Any] = {"torch": torch.__version__}
    for name in args.family:
        found[name] = calibrate(family_named(name), args.tiny, lambda: ends_at - time.monotonic())
        text = json.dumps(found)
        if args.out is not None:
            args.out.write_text(text)
    print(json.dumps(found), flush=True)


def calibrate(family: Family, tiny: bool, left_s: Callable[[], float]) -> dict[str, Any]:
    """All cases of one family; the model is released at the end."""
    device = torch.device("cpu" if tiny else "cuda")
    if not tiny:
        # As workers do (node/equipment.py).
        torch.backends.cuda.enable_cudnn_sdp(False)
    if left_s() < 30:
        return {}
    probe, began = Probe(device), time.monotonic()
    gc.collect()
    probe.empty()
    context = probe.reserved()
    bench = Bench(_adapter(family, tiny, device), family, LORA[family.name], probe)
    print(f"{family.name} is on the device after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    cases: dict[str, Any] = {}
    for case in QWEN if family.name == "qwen-image" else OTHERS:
        if left_s() < 10:
            break
        began, edge = time.monotonic(), TINY_EDGE if tiny else case.edge
        tried = Case(case.kind, edge, case.rows, case.blocks, case.text, case.guided)
        try:
            cases[str(case)] = bench.run(tried)
        except torch.OutOfMemoryError as error:
            cases[str(case)] = {"out_of_memory": str(error)[:300]}
        shown = cases[str(case)].get("peak", -1) / 2**30
        print(f"{case}: {shown:.2f} GiB, {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return {"context": context, "rank": LORA[family.name], "sizes": bench.sizes(), "cases": cases}


def _adapter(family: Family, tiny: bool, device: torch.device) -> PipelineAdapter:
    if not tiny:
        return random_full(family, device, torch.bfloat16)
    return load_model(str(write_tiny(family, Path(tempfile.mkdtemp()))), device, torch.float32)


if __name__ == "__main__":
    main()
