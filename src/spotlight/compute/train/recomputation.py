"""Gradient checkpointing of the first blocks of a transformer: these compute their activations again in the backward.

Invariant: the gradient does not depend on the number of recomputed blocks, on a CPU bit for bit
(tests/unit/test_recomputation.py).
"""

from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

BLOCK_LISTS = ("transformer_blocks", "single_transformer_blocks")
"""Attributes of diffusers' transformers that hold their blocks, in the order of the forward."""


def blocks_of(transformer: nn.Module) -> list[nn.Module]:
    """All repeated blocks in the order of the forward."""
    return [block for name in BLOCK_LISTS for block in getattr(transformer, name, ())]


def recompute_first(transformer: nn.Module, count: int) -> None:
    """Recompute the first `count` blocks. The last ones release their activations first in a backward pass, so
    that the others' recomputation then has their room."""
    blocks = blocks_of(transformer)
    diffusers_model: Any = transformer
    if not count:
        return
    if count >= len(blocks):
        diffusers_model.enable_gradient_checkpointing()
        return
    recomputed = {id(block) for block in blocks[:count]}

    def run(block: nn.Module, *inputs: Any) -> Any:
        if id(block) in recomputed:
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)

    diffusers_model.enable_gradient_checkpointing(run)
