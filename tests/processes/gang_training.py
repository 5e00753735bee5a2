"""A training rank for tests of gangs: the trainer alone, with tensors in memory, or a whole training role.

The same scenarios run on a CPU over gloo and on GPUs over NCCL (tests/gpus).
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import torch
from family_models import GUIDANCE, TEXTS, windowed_samples
from tiny_models import RUN_SEED, grouped_samples, rolled_out, tiny_adapter, tiny_experience, tiny_sampling

from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.models.family_registry import FAMILIES
from spotlight.compute.parallel.gang_group import GangGroup, GangLinks
from spotlight.compute.rollout.denoise import roll_out
from spotlight.compute.train import part_loading
from spotlight.compute.train import trainer as trainer_module
from spotlight.compute.train.boxes import box_of
from spotlight.compute.train.config import AlgorithmConfig, FlowGrpoConfig, NftConfig, OldLogProb, TrainConfig
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.role import TrainingRole
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.weights.digest import digest
from spotlight.core import messages as m
from spotlight.core.types import Prompt, SamplerKind, Version, Window

NFT = NftConfig(kl_weight=0.05, timesteps_per_sample=2)
FLOW = FlowGrpoConfig(kl_weight=0.05, clip=3e-4)
UNMOVED = FlowGrpoConfig(old_log_prob=OldLogProb.RECOMPUTED)
ALGORITHMS: dict[str, AlgorithmConfig] = {"nft": NFT, "flow_grpo": FLOW, "unmoved_flow_grpo": UNMOVED}
BASE = "base"
JOIN_PAYLOADS = part_loading.join_payloads


def moved(trainer: Trainer, scale: float = 0.003) -> None:
    """Move theta and the behaviour sets apart, so that clipping, KL and every policy matter."""
    generator = torch.Generator().manual_seed(3)
    trainer.sets.fill()
    with torch.no_grad():
        for name, parameter in trainer.sets.theta.items():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator).to(parameter))
            for which in trainer.sets.names:
                if which.value in ("before", "start"):
                    copy = trainer.sets[which][name]
                    copy.add_(scale * torch.randn(copy.shape, generator=generator).to(copy))


def experience_of(adapter: Any, algorithm: AlgorithmConfig, is_stale: bool, dtype: torch.dtype) -> Experience:
    """Eight samples, of which those of odd groups are one version old if `is_stale`."""
    is_nft = isinstance(algorithm, NftConfig)
    sampling = tiny_sampling() if is_nft else tiny_sampling(SamplerKind.CPS, Window(0, 2))
    made = tiny_experience(adapter, grouped_samples(sampling))
    rollout = made.rollout
    names = ("x0_BSC", "path_BKSC", "log_prob_BK", "mean_BKSC")
    tensors = {name: getattr(rollout, name).to(dtype) for name in names}
    samples = rollout.samples
    if is_stale:
        versions = [1 - number // 2 % 2 for number in range(len(samples))]
        samples = tuple(
            msgspec.structs.replace(sample, version=Version(version))
            for sample, version in zip(samples, versions, strict=True)
        )
    cond = ConditionBatch(made.cond.embeds.to(dtype), made.cond.mask)
    return replace(
        made,
        rollout=replace(rollout, samples=samples, **tensors),
        cond=cond,
        advantage_B=made.advantage_B.to(adapter.device),
        kept_B=made.kept_B.to(adapter.device),
        iteration=1 if is_stale else 0,
    )


def family_adapter(name: str, folder: str) -> Any:
    return FAMILIES[name].load_adapter_class().from_pretrained(folder, "cpu", torch.float32)


def family_experience(adapter: Any) -> Experience:
    """Four guided samples of two prompts of different lengths."""
    guidance = GUIDANCE[adapter.family]
    first, second = adapter.encode([Prompt(text=text) for text in TEXTS])
    cond = adapter.collate([first, first, second, second])
    uncond = adapter.collate([adapter.unconditional()] * 4)
    samples = windowed_samples(guidance, steps=4, window=2)
    return Experience(
        rollout=roll_out(adapter, samples, cond, uncond, RUN_SEED),
        cond=cond,
        uncond=uncond,
        advantage_B=torch.tensor([1.0, -0.5, 0.7, -1.2]),
        kept_B=torch.ones(4, dtype=torch.bool),
        iteration=0,
    )


class TrainerRank:
    """A trainer that joins gangs."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.role: Any = None
        self.sent: list[m.AnyMessage] = []
        self.read: list[str] = []
        self.device = torch.device("cpu")
        made = (self.build, self.set_speeds, self.update, self.weights, self.build_role, self.form, self.obey)
        made += (
            self.use_gpu,
            self.held,
            self.slow_down,
            self.share_sizes,
            self.rolled_out,
            self.taken_reads,
            self.taken_messages,
            self.die_in_exchange,
        )
        self.orders: dict[str, Callable[..., Any]] = {order.__name__: order for order in made}

    def use_gpu(self, number: int) -> None:
        """Build models on this GPU from now on."""
        self.device = torch.device("cuda", number)
        torch.cuda.set_device(self.device)
        torch.backends.cuda.enable_cudnn_sdp(False)

    def build(
        self,
        algorithm: str,
        dtype: str = "float32",
        is_stale: bool = False,
        family: str = "",
        folder: str = "",
        clip_fractions: tuple[float, float] | None = None,
        **train: Any,
    ) -> None:
        """Build the trainer and its samples: eight of a pixel model, or four of a tiny checkpoint of a family.

        `clip_fractions` of fresh and of stale rows decide where stale rows are clipped.
        """
        config = TrainConfig.model_validate({"micro_batch": 4, "lr": 1e-3, "max_grad_norm": 1e9, **train})
        chosen, number = ALGORITHMS[algorithm], getattr(torch, dtype)
        adapter: Any = family_adapter(family, folder) if family else tiny_adapter()
        adapter.transformer.to(self.device)
        if family:
            self.experience = family_experience(adapter)
            adapter._dtype = number
        else:
            self.experience = experience_of(adapter, chosen, is_stale, number)
        adapter.transformer.to(number)
        self.trainer = Trainer(adapter, config, chosen, RUN_SEED, keeps_before=is_stale)
        if chosen is not UNMOVED:
            moved(self.trainer)
        if clip_fractions is not None:
            self.trainer.objective_state["clip_fractions"].copy_(torch.tensor(clip_fractions))

    def train_in(self, gang: GangGroup | None, is_even: bool = True) -> None:
        self.trainer.join(gang, is_even)

    def slow_down(self, factor: float) -> None:
        """Let the trainer's clock run faster, as if this rank computed more slowly."""
        clock = SimpleNamespace(perf_counter=lambda: factor * time.perf_counter())
        trainer_module.time = clock  # type: ignore[attr-defined]

    def share_sizes(self, pairs: int) -> list[int]:
        return [len(share) for share in self.trainer._side.shares(pairs)]

    def set_speeds(self, speeds: list[float]) -> None:
        self.trainer._side._speeds = speeds

    def update(self, parts: list[list[int]], announced: int | None = None) -> tuple[np.ndarray, dict[str, float], int]:
        """Take one step in these parts; returns its gradient, figures and number of rows."""
        self.trainer.begin(announced or sum(len(part) for part in parts))
        for part in parts:
            self.trainer.add(self.experience, part)
        report = self.trainer.finish(self.experience.iteration)
        return self.gradient(), {"loss": report.loss, "grad_norm": report.grad_norm, **report.figures}, report.rows

    def rolled_out(self) -> str:
        """Digest of a rollout with the current weights, on this rank alone."""
        samples = grouped_samples(tiny_sampling())
        return digest({"x0": rolled_out(self.trainer.adapter, samples).x0_BSC})

    def held(self) -> tuple[int, int]:
        """Numbers of the model that this rank holds, and all of them."""
        parameters = list(self.trainer.adapter.transformer.parameters())
        return sum(box_of(p.detach()).data.numel() for p in parameters), sum(p.numel() for p in parameters)

    def gradient(self) -> np.ndarray:
        """All gradients as one row; absent ones are zero."""
        rows = []
        for parameter in self.trainer.sets.theta.values():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            rows.append(_whole(gradient).detach().double().flatten().cpu())
        return torch.cat(rows).numpy()

    def weights(self) -> dict[str, str]:
        """Digest of theta, of each copy and of the optimizer's moments."""
        sets: dict[str, dict[str, torch.Tensor]] = {
            "theta": {name: _whole(p.detach()) for name, p in self.trainer.sets.theta.items()}
        }
        for which in self.trainer.sets.names:
            sets[which.value] = {name: _whole(tensor) for name, tensor in self.trainer.sets[which].items()}
        sets["moments"] = {
            f"{moment} {name}": _whole(value)
            for name, parameter in self.trainer.sets.theta.items()
            for moment, value in self.trainer.optimizer.state.get(parameter, {}).items()
        }
        sets["counts"] = {"updates": self.trainer.updates, **self.trainer.objective_state}
        return {name: digest(tensors) for name, tensors in sets.items()}

    # -- a whole role --------------------------------------------------------------------------------------------------

    def build_role(
        self, folder: str, algorithm: str, links: dict[str, Any], is_stale: bool = False, **train: Any
    ) -> None:
        config = TrainConfig.model_validate({"micro_batch": 4, "lr": 1e-3, **train})
        adapter = tiny_adapter()
        adapter.transformer.to(self.device)
        self.trainer = Trainer(adapter, config, ALGORITHMS[algorithm], RUN_SEED, keeps_before=is_stale)
        chosen = GangLinks(**{"even_shares": True, **links})
        self.role = TrainingRole(self.trainer, adapter, BASE, Path(folder), self.sent.append, links=chosen)
        self.read.clear()

        def join_payloads(requests: Any, payloads: Any, device: Any) -> Any:
            self.read.extend(path.name for path in payloads)
            return JOIN_PAYLOADS(requests, payloads, device)

        part_loading.join_payloads = join_payloads

    def form(self, order: m.FormGang, abort_after_s: float | None = None) -> Any:
        if abort_after_s is not None:
            threading.Timer(abort_after_s, self.role.abort, [order.epoch + 1]).start()
        return self.role.form(order)

    def obey(self, order: Any) -> Any:
        return self.role.obey(order)

    def taken_reads(self) -> list[str]:
        """Names of the payloads read since the last call."""
        read, self.read = self.read, []
        return sorted(read)

    def taken_messages(self) -> list[Any]:
        """Messages sent since the last call, after the checkpoint under way has ended."""
        self.role.settle()
        sent = list(self.sent)
        self.sent.clear()
        return sent

    def die_in_exchange(self, number: int) -> None:
        """Kill this process in its `number`-th exchange from now on."""
        gang, left = self.trainer.gang, [number]
        real = gang._attempt

        def attempt(sends: Any, receives: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(sends, receives)

        gang._attempt = attempt


def _whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
