"""One model made fast in place: compiled blocks, an attention kernel, CUDA graphs, and fp8 for previews.

    eager adapter -> accelerate(adapter, kernel) -> the same adapter, parameters and names; other kernels

Only the repeated blocks are compiled, once for all of them; a new shape takes 3 to 5 seconds on an H200, 30 with its
backward, and is cached on disk. Shapes are few, because almost all text of a run is padded to one width
(`one_text_width`) and the engine rounds its row counts up (`row_bucket`).

Invariant: the velocity is the eager model's but for rounding, and so is the gradient (tests/unit/test_fast_blocks.py).
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor, nn

from spotlight.compute.fast.attention import AttentionKernel
from spotlight.compute.fast.fp8 import PreviewSwitch, add_fp8
from spotlight.compute.fast.graphs import GraphedForwards
from spotlight.compute.fast.lora_layers import round_adapters
from spotlight.compute.fast.qwen_attention import RealJointAttention, real_tables
from spotlight.compute.train.recomputation import blocks_of

INDUCTOR: dict[str, bool | int | str] = {"triton.coalesce_tiling_analysis": False}
"""This analysis fails for the backward pass of a block (torch 2.11: CantSplit), and is no faster without failing."""
STREAMS = ("hidden_states", "encoder_hidden_states")
"""Inputs of diffusers' transformers that their blocks transform."""
PADDING_SHARE = 8
"""Text may be padded to 1 / PADDING_SHARE of the image's tokens, to have one shape instead of several."""
MOST_SHAPES = 64
"""Compiled shapes of one kind of block; torch's own limit of 8 would run further ones uncompiled, without a word."""


@dataclass
class FastModel:
    """State of an accelerated model: what the running forward may use."""

    kernel: AttentionKernel
    precision: PreviewSwitch = field(default_factory=PreviewSwitch)
    has_fp8: bool = False
    graphs: GraphedForwards | None = None
    is_split: bool = False
    """Whether a crew shares the forward: a graph cannot hold its exchanges."""
    weights: Hashable | None = None
    """Names the tensors that a rollout computes with; None outside of rollouts, where addresses may change."""

    @contextmanager
    def rolling_out(self, weights: Hashable, is_preview: bool) -> Iterator[None]:
        """Run forwards by graph inside the block, and in fp8 if it is a preview's."""
        before = self.weights, self.precision.previews
        self.weights, self.precision.previews = weights, is_preview and self.has_fp8
        try:
            yield
        finally:
            self.weights, self.precision.previews = before

    def run(self, kind: Hashable, forward: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Tensor:
        """Return forward(*inputs), by graph where that is faster; `kind` names all else that it depends on."""
        if self.graphs is None or self.is_split or self.weights is None or torch.is_grad_enabled():
            return forward(*inputs)
        return self.graphs.run((kind, self.weights, self.precision.previews), forward, inputs)


@runtime_checkable
class CanBeFast(Protocol):
    """An adapter whose forwards go through `fast`, once that is set."""

    fast: FastModel | None


def accelerate(
    transformer: nn.Module, kernel: AttentionKernel, fp8_previews: bool = False, backend: str = "inductor"
) -> FastModel:
    """Compile the blocks of a transformer whose adapters are in place; parameters and names stay as they are."""
    is_on_gpu = next(transformer.parameters()).is_cuda
    made = FastModel(kernel, has_fp8=fp8_previews, graphs=GraphedForwards() if is_on_gpu else None)
    blocks = blocks_of(transformer)
    if fp8_previews:
        add_fp8(blocks, made.precision)
    round_adapters(transformer)
    if isinstance(transformer, QwenImageTransformer2DModel):
        _use_real_attention(transformer, kernel)
    elif is_on_gpu:
        _allow_kernel(kernel)
    transformer.register_forward_pre_hook(_with_gradients, with_kwargs=True)
    torch._dynamo.config.recompile_limit = MOST_SHAPES
    for block in blocks:
        # Attention over a crew breaks the graph, so it is not required to be whole.
        block.compile(dynamic=False, backend=backend, options=INDUCTOR if backend == "inductor" else None)
    return made


def _use_real_attention(transformer: Any, kernel: AttentionKernel) -> None:
    attention = RealJointAttention(kernel)
    for block in transformer.transformer_blocks:
        block.attn.processor = attention
    transformer.pos_embed.register_forward_hook(real_tables)


def _allow_kernel(kernel: AttentionKernel) -> None:
    """Let torch's own attention use this kernel only, or any but cuDNN's."""
    torch.backends.cuda.enable_cudnn_sdp(kernel is AttentionKernel.CUDNN)
    torch.backends.cuda.enable_flash_sdp(kernel is not AttentionKernel.CUDNN)


def _with_gradients(
    _: nn.Module, args: tuple[Any, ...], inputs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Let inputs require gradients in training, so that one compiled graph serves the first block and all others."""
    if torch.is_grad_enabled():
        streams = {name: inputs[name] for name in STREAMS if name in inputs}
        inputs |= {name: x if x.requires_grad else x.detach().requires_grad_() for name, x in streams.items()}
    return args, inputs


def one_text_width(widest: int, widths: Sequence[int], image_tokens: int) -> int:
    """Least width of padded text: that of the run's longest prompt, unless padding would cost too much.

    `widest` is a width that holds all prompts, one of the ascending `widths`.
    """
    cheap = [width for width in widths if width <= max(image_tokens // PADDING_SHARE, widths[0])]
    return min(widest, cheap[-1])


def row_bucket(rows: int, most: int) -> int:
    """Row count of a compiled forward of `rows` samples: a power of two, at most `most`."""
    return min(1 << (rows - 1).bit_length(), most)
