"""Selection of the trained parameters: all weights, or low-rank adapters through peft."""

from collections.abc import Sequence

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from spotlight.compute.train.config import LoraConfig
from spotlight.core.errors import ConfigError

ADAPTER = "policy"


def select_trainable(transformer: nn.Module, lora: LoraConfig | None, targets: Sequence[str], seed: int) -> None:
    """Mark parameters for training, and inject adapters if `lora` is set.

    Adapters start as the identity, in fp32, or in fp64 over such a base.
    """
    if lora is None:
        _check_precision(transformer)
        transformer.requires_grad_(True)
        return
    transformer.requires_grad_(False)
    adapters = PeftLoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(targets),
        # Dropout would make rollout and training disagree.
        lora_dropout=0.0,
        init_lora_weights="gaussian",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(adapters, transformer, adapter_name=ADAPTER)
    for parameter in transformer.parameters():
        # peft uses the base's dtype, and in bf16 most optimizer steps would round to nothing.
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))


@torch.no_grad()
def merged_state(transformer: nn.Module) -> dict[str, Tensor]:
    """Return the state dict under the base model's names, with adapters added to the weights that they adapt.

    Merged weights are new and at least fp32, because bf16 would round small adapters away; the others alias the module,
    as in `state_dict`. Inside `WeightSets.using` it is that set's state.
    """
    state = dict(transformer.state_dict())
    for prefix, layer in transformer.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        for name in layer.state_dict():
            del state[f"{prefix}.{name}"]
        base = layer.get_base_layer().state_dict()
        delta = layer.get_delta_weight(ADAPTER)
        base["weight"] = base["weight"].to(torch.promote_types(base["weight"].dtype, torch.float32)) + delta
        state |= {f"{prefix}.{name}": value for name, value in base.items()}
    return state


def _check_precision(transformer: nn.Module) -> None:
    coarse = sorted({str(p.dtype) for p in transformer.parameters()} - {"torch.float32", "torch.float64"})
    if coarse:
        raise ConfigError(
            f"some of the weights to train are {', '.join(coarse)}, in which AdamW's small steps round to nothing; "
            "load the model in float32, or set train.lora."
        )
