"""What is trained: all weights, or low-rank adapters through peft."""

from collections.abc import Sequence

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import inject_adapter_in_model
from torch import nn

from spotlight.compute.train.config import LoraConfig

ADAPTER = "policy"


def select_trainable(transformer: nn.Module, lora: LoraConfig | None, targets: Sequence[str], seed: int) -> None:
    """Mark parameters for training, injecting adapters where asked; adapters start as the identity, in fp32."""
    if lora is None:
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
        # peft takes the base's dtype, and in bf16 most steps of an optimizer would round to nothing.
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
