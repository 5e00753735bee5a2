"""The LoRA adapters of one run by module, complete: every parameter has a module, every module both matrices.

peft names the parameters of a module `MODULE.lora_A.policy.weight` (down, [rank, in]) and `MODULE.lora_B.policy.weight`
(up, [out, rank]). Shapes: R rank, I inputs, O outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spotlight.compute.train.config import LoraConfig
from spotlight.compute.train.lora import ADAPTER, select_trainable
from spotlight.core.errors import WeightsError


@dataclass(frozen=True)
class LowRank:
    """One module's change of its weight: scale * up_OR @ down_RI."""

    down_RI: Tensor
    up_OR: Tensor


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """All adapters of one transformer; every change is scaled by alpha / rank."""

    rank: int
    alpha: float
    modules: Mapping[str, LowRank]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


def by_module(
    parameters: Mapping[str, Tensor], lora: LoraConfig, transformer: nn.Module, targets: Sequence[str]
) -> Adapters:
    """Group peft's parameters; raises WeightsError unless they are exactly those that `transformer` would train.

    Only the names and shapes of `transformer` count: it gets adapters of its own, and may be on the meta device.
    """
    select_trainable(transformer, lora, targets, seed=0)
    wanted = {name: tuple(p.shape) for name, p in transformer.named_parameters() if p.requires_grad}
    found = {name: tuple(tensor.shape) for name, tensor in parameters.items()}
    if found != wanted:
        wrong = sorted(name for name in {*wanted, *found} if wanted.get(name) != found.get(name))
        raise WeightsError(
            f"these {len(found)} adapter tensors are not the {len(wanted)} of rank {lora.rank} that the base model "
            f"takes: {len(wrong)} are missing, unknown or of another shape (first: {wrong[0]}); restore the base model "
            "and the config.json that the run trained with."
        )
    down = f".lora_A.{ADAPTER}.weight"
    modules = {
        name.removesuffix(down): LowRank(_plain(tensor), _plain(parameters[name.replace(".lora_A.", ".lora_B.")]))
        for name, tensor in sorted(parameters.items())
        if name.endswith(down)
    }
    return Adapters(rank=lora.rank, alpha=lora.alpha, modules=modules)


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32).contiguous()
