"""Sizes of a transformer's blocks, from its config.json; free of torch.

`compute/memory/activations.py` computes from these what a forward and a backward hold.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HIDDEN_RATIO = 4
"""Width of the feed-forward layers over the model's width, in every family."""


@dataclass(frozen=True, kw_only=True)
class BlockStructure:
    """What the blocks of a family keep, beside what all families keep (compute/memory/activations.py).

    Counts are of tensors as wide as the model, per token. `tests/unit/test_memory_activations.py` compares them with
    the tensors that torch really keeps.
    """

    adapts_feed_forward: bool = True
    """Whether adapters change the feed-forward layers of blocks with two streams."""
    fused_norms: bool = False
    """Whether queries and keys are normalised by one kernel. Otherwise Python code computes it, which keeps a copy in
    float32 beside the input."""
    alive: int = 7
    """Tensors of an image token that a forward holds while the feed-forward layer runs."""
    alive_text: int = 5
    """The same of a text token."""
    alive_trained: int = 5
    """Tensors of a token that a forward with gradients holds then, beside those that the backward pass needs."""


@dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """Blocks of one transformer."""

    structure: BlockStructure
    width: int
    heads: int
    blocks: int
    """Blocks with two streams, image and text."""
    single_blocks: int = 0
    """Blocks over image and text as one stream."""
    dual_blocks: int = 0
    """Blocks among `blocks` whose image tokens have a second attention of their own."""
    positions: int = 0
    """Numbers of a table of positions, which is stored with the weights but never trained."""

    @property
    def hidden(self) -> int:
        return HIDDEN_RATIO * self.width

    @property
    def all_blocks(self) -> int:
        return self.blocks + self.single_blocks

    @classmethod
    def of(cls, structure: BlockStructure, config: Mapping[str, Any]) -> "TransformerShape":
        """From a transformer's config.json."""
        heads = int(config["num_attention_heads"])
        width = heads * int(config["attention_head_dim"])
        return cls(
            structure=structure,
            width=width,
            heads=heads,
            blocks=int(config["num_layers"]),
            single_blocks=int(config.get("num_single_layers") or 0),
            dual_blocks=len(config.get("dual_attention_layers") or ()),
            positions=int(config.get("pos_embed_max_size") or 0) ** 2 * width,
        )


@dataclass(frozen=True)
class DecoderShape:
    """Numbers per pixel that a VAE's decoder holds at its peak, at the full size of the image."""

    maps: int
    """Feature maps: those that torch keeps alive at once."""
    workspace: int
    """Workspace of cuDNN's convolutions, measured on an H200 at 512x512 (benchmarks/memory)."""

    @classmethod
    def of(cls, vae: Mapping[str, Any]) -> "DecoderShape":
        """From a VAE's config.json.

        An image VAE holds three maps of its second width, or five of its first. A video VAE holds 18 maps of its first
        width: padded copies of three frames, and caches of its convolutions.
        """
        if "base_dim" in vae:
            width = int(vae["base_dim"])
            return cls(18 * width, round(4.07 * width))
        widths = [int(width) for width in vae["block_out_channels"]]
        second = widths[min(1, len(widths) - 1)]
        return cls(max(3 * second, 5 * widths[0]), round(1.76 * second))


NO_DECODER = DecoderShape(0, 0)
"""Of a model whose latents are pixels."""
