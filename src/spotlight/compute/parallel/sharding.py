"""Sequence parallelism over the transformer blocks of diffusers: a thin layer, active while a group is bound.

Image tokens are split between the ranks before the first block, and text is on every rank. Attention swaps tokens for
heads and back (Ulysses), so that each rank attends with some heads over all tokens. Keys stay in the order of the stock
processors (text before image, in SD3 after it), because softmax sums in key order: another order moves the last bits.

    bind(None): the stock path, bit for bit   <->   bind(group): sharded; weights and compiled blocks stay as they are

Invariant: on CPU in fp32 a forward of Qwen-Image's or SD3's transformer has the same bits at every degree
(tests/processes/test_parallel_numerics.py). That needs one thread per rank, and tokens split in fours (see splits.py).
FLUX's single blocks compute text and image rows in one matrix, whose height depends on the degree, so FLUX agrees to
1e-5 instead. On GPUs kernels depend on the row count, and degrees agree to rounding. With gradients on, the sum of the
ranks' gradients is the gradient of one rank (exchanges.py).

Shapes: B batch, T text tokens, S image tokens (s of this rank), H heads (h of this rank), D head width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import FluxTransformer2DModel, QwenImageTransformer2DModel, SD3Transformer2DModel
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.attention_processor import JointAttnProcessor2_0
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers.transformer_flux import FluxAttnProcessor
from diffusers.models.transformers.transformer_qwenimage import QwenDoubleStreamAttnProcessor2_0, apply_rotary_emb_qwen
from torch import Tensor, nn
from torch.nn import functional as F

from spotlight.compute.fast.qwen_attention import RealJointAttention, rotated
from spotlight.compute.parallel.exchanges import all_gather, all_to_all
from spotlight.compute.parallel.group import CrewGroup
from spotlight.compute.parallel.splits import TOKEN_MULTIPLE, check_degree, spans, split_sizes
from spotlight.core.errors import ConfigError

Attend = Callable[..., Tensor]


@dataclass(frozen=True)
class Plan:
    """Split of one forward, equal on all ranks: image tokens and heads of each rank."""

    group: CrewGroup
    tokens: tuple[int, ...]
    heads: tuple[int, ...]

    @property
    def span(self) -> slice:
        """This rank's image tokens."""
        return spans(self.tokens)[self.group.rank]

    @property
    def shard(self) -> int:
        return self.tokens[self.group.rank]


class Sharding:
    """Splits one transformer's forwards while a group is bound to it; built once per model."""

    def __init__(self, transformer: nn.Module) -> None:
        family = _family_of(transformer)
        model: Any = transformer
        self.heads = int(model.config.num_attention_heads)
        self._layers = [module for _, module in transformer.named_modules() if _is_attention(module)]
        self._stock = [_checked_processor(layer, family) for layer in self._layers]
        self._sharded = family.processor(self)
        self._group: CrewGroup | None = None
        self._plan: Plan | None = None
        if family.shard_positions is None:
            # The first layer of SD3 cuts patches and adds their positions: its output is split.
            model.pos_embed.register_forward_hook(lambda module, inputs, output: self._split(output))
        else:
            getattr(model, family.entry).register_forward_pre_hook(self._enter)
            model.pos_embed.register_forward_hook(family.shard_positions(self))
        model.proj_out.register_forward_hook(self._leave)

    @property
    def group(self) -> CrewGroup | None:
        return self._group

    @property
    def plan(self) -> Plan:
        """Plan of the running forward."""
        if self._plan is None:
            raise ConfigError(
                "an attention layer was called outside of its transformer's forward, so the split of its tokens is "
                "undefined; bind no group for that."
            )
        return self._plan

    def bind(self, group: CrewGroup | None) -> None:
        """Run the next forwards over this group, or none; weights are neither changed nor moved."""
        if group is not None:
            check_degree(group.degree, self.heads, slots=group.degree)
        self._group, self._plan = group, None
        self._sharded.backend = getattr(self._stock[0], "_attention_backend", None)
        for layer, stock in zip(self._layers, self._stock, strict=True):
            layer.processor = stock if group is None else self._sharded

    def _enter(self, module: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        x_BSC = self._split(arguments[0])
        return None if x_BSC is None else (x_BSC,)

    def _split(self, x_BSC: Tensor) -> Tensor | None:
        """This rank's image tokens, under a new plan; None without a group."""
        if self._group is None:
            return None
        degree = self._group.degree
        if x_BSC.shape[1] < degree:
            raise ConfigError(
                f"an image of {x_BSC.shape[1]} tokens cannot be split over a crew of {degree}, because every rank "
                f"needs one; use a degree of at most {x_BSC.shape[1]}."
            )
        sizes = split_sizes(x_BSC.shape[1], degree, TOKEN_MULTIPLE)
        self._plan = Plan(self._group, sizes, split_sizes(self.heads, degree))
        return x_BSC[:, self._plan.span].contiguous()

    def _leave(self, module: nn.Module, arguments: Any, output_BSC: Tensor) -> Tensor | None:
        if self._group is None:
            return None
        plan = self.plan
        if not torch.is_grad_enabled():
            # A checkpointed backward runs blocks again under this plan.
            self._plan = None
        return all_gather(plan.group, output_BSC, plan.tokens)


@torch.compiler.disable
def ulysses(plan: Plan, q: Tensor, k: Tensor, v: Tensor, text: int, attend: Attend, text_last: bool = False) -> Tensor:
    """Attend over all tokens of q, k, v_B(T+s)HD, of which this rank holds the text and its own image tokens.

    `text_last`: attend in the order image, text; the result is in the order text, image either way. It takes two
    exchanges. The first sends q, k and v of each head to the rank that owns the head; the second returns that head's
    outputs for the text and for the receiver's tokens.
    """
    group, rank = plan.group, plan.group.rank
    batch, _, _, width = q.shape
    heads = spans(plan.heads)
    image = torch.stack([q[:, text:], k[:, text:], v[:, text:]])
    mine = plan.heads[rank]
    by_token = [(3, batch, size, mine, width) for size in plan.tokens]
    arrived = all_to_all(group, [image[..., span, :].contiguous() for span in heads], by_token)
    joint = []
    for which, own in enumerate((q, k, v)):
        parts = [part[which] for part in arrived]
        parts.insert(len(parts) if text_last else 0, own[:, :text, heads[rank]])
        joint.append(torch.cat(parts, dim=1))
    out = attend(*joint)
    if text_last:
        out = out.roll(text, dims=1)
    back = [torch.cat([out[:, :text], out[:, text:][:, span]], dim=1) for span in spans(plan.tokens)]
    by_head = [(batch, text + plan.shard, count, width) for count in plan.heads]
    return torch.cat(all_to_all(group, back, by_head), dim=2)


class _QwenProcessor:
    """The stock double-stream processor, step by step, with attention over the crew."""

    def __init__(self, sharding: Sharding) -> None:
        self._sharding = sharding
        self.backend: Any = None

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: tuple[Tensor, Tensor] | None = None,
        text_keep: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        plan, text = self._sharding.plan, encoder_hidden_states.shape[1]
        text_mask = encoder_hidden_states_mask if text_keep is None else text_keep
        width = attn.inner_dim // attn.heads
        image = [part.unflatten(-1, (-1, width)) for part in _projected(attn, hidden_states)]
        words = [part.unflatten(-1, (-1, width)) for part in _projected_text(attn, encoder_hidden_states)]
        image[:2] = attn.norm_q(image[0]), attn.norm_k(image[1])
        words[:2] = attn.norm_added_q(words[0]), attn.norm_added_k(words[1])
        if image_rotary_emb is not None:
            image_freqs, text_freqs = image_rotary_emb
            image[:2] = [_rotated(part, image_freqs) for part in image[:2]]
            words[:2] = [_rotated(part, text_freqs) for part in words[:2]]
        query, key, value = (torch.cat(pair, dim=1) for pair in zip(words, image, strict=True))
        mask = None
        if text_mask is not None:
            everything = text_mask.new_ones((len(query), sum(plan.tokens)))
            mask = torch.cat([text_mask, everything], dim=1)[:, None, None, :]
        joint = ulysses(plan, query, key, value, text, _stock_attention(self.backend, mask))
        joint = joint.flatten(2, 3).to(query.dtype)
        image_out = attn.to_out[0](joint[:, text:].contiguous())
        if len(attn.to_out) > 1:
            image_out = attn.to_out[1](image_out)
        return image_out, attn.to_add_out(joint[:, :text].contiguous())


class _FluxProcessor:
    """The stock processor of both kinds of FLUX blocks; rows of a single block hold text and image."""

    def __init__(self, sharding: Sharding) -> None:
        self._sharding = sharding
        self.backend: Any = None

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        plan = self._sharding.plan
        query, key, value = (part.unflatten(-1, (-1, attn.head_dim)) for part in _projected(attn, hidden_states))
        query, key = attn.norm_q(query), attn.norm_k(key)
        if encoder_hidden_states is not None:
            words = [part.unflatten(-1, (-1, attn.head_dim)) for part in _projected_text(attn, encoder_hidden_states)]
            query = torch.cat([attn.norm_added_q(words[0]), query], dim=1)
            key = torch.cat([attn.norm_added_k(words[1]), key], dim=1)
            value = torch.cat([words[2], value], dim=1)
        if image_rotary_emb is not None:
            query = apply_rotary_emb(query, image_rotary_emb, sequence_dim=1)
            key = apply_rotary_emb(key, image_rotary_emb, sequence_dim=1)
        text = query.shape[1] - plan.shard
        if attention_mask is not None and attention_mask.ndim == 4 and attention_mask.shape[1] > 1:
            attention_mask = attention_mask[:, spans(plan.heads)[plan.group.rank]]
        joint = ulysses(plan, query, key, value, text, _stock_attention(self.backend, attention_mask))
        joint = joint.flatten(2, 3).to(query.dtype)
        if encoder_hidden_states is None:
            return joint
        image_out = attn.to_out[1](attn.to_out[0](joint[:, text:].contiguous()))
        return image_out, attn.to_add_out(joint[:, :text].contiguous())


class _SD3Processor:
    """The stock joint processor, image before text, which ignores masks.

    The second attention of SD3.5 has no text, and the last block returns text without a projection.
    """

    def __init__(self, sharding: Sharding) -> None:
        self._sharding = sharding
        self.backend: Any = None

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        plan, width = self._sharding.plan, attn.to_k.out_features // attn.heads
        joint = [part.unflatten(-1, (-1, width)) for part in _projected(attn, hidden_states)]
        joint[:2] = _normed(joint[0], attn.norm_q), _normed(joint[1], attn.norm_k)
        text = 0
        if encoder_hidden_states is not None:
            text = encoder_hidden_states.shape[1]
            words = [part.unflatten(-1, (-1, width)) for part in _projected_text(attn, encoder_hidden_states)]
            words[:2] = _normed(words[0], attn.norm_added_q), _normed(words[1], attn.norm_added_k)
            joint = [torch.cat(pair, dim=1) for pair in zip(words, joint, strict=True)]
        query, key, value = joint
        out = ulysses(plan, query, key, value, text, _plain_attention, text_last=True)
        out = out.flatten(2, 3).to(query.dtype)
        image_out = attn.to_out[1](attn.to_out[0](out[:, text:].contiguous()))
        if encoder_hidden_states is None:
            return image_out
        text_out = out[:, :text].contiguous()
        return image_out, text_out if attn.context_pre_only else attn.to_add_out(text_out)


def _normed(part: Tensor, norm: nn.Module | None) -> Tensor:
    return part if norm is None else norm(part)


def _plain_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention as in the stock joint processor, which has no choice of backends."""
    q, k, v = (part.transpose(1, 2) for part in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def _rotated(part: Tensor, table: Tensor) -> Tensor:
    """Rotate by diffusers' complex table, or by the real ones of a model that was made fast."""
    turned: Tensor = apply_rotary_emb_qwen(part, table, use_real=False) if table.is_complex() else rotated(part, table)
    return turned


def _projected(attn: Any, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return attn.to_q(rows), attn.to_k(rows), attn.to_v(rows)


def _projected_text(attn: Any, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return attn.add_q_proj(rows), attn.add_k_proj(rows), attn.add_v_proj(rows)


def _stock_attention(backend: Any, mask: Tensor | None) -> Attend:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out: Tensor = dispatch_attention_fn(query, key, value, attn_mask=mask, backend=backend)
        return out

    return attend


def _qwen_positions(sharding: Sharding) -> Callable[..., Any]:
    def shard(module: nn.Module, arguments: Any, freqs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | None:
        image_freqs, text_freqs = freqs
        return None if sharding.group is None else (image_freqs[sharding.plan.span], text_freqs)

    return shard


def _flux_positions(sharding: Sharding) -> Callable[..., Any]:
    def shard(module: nn.Module, arguments: Any, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, ...] | None:
        if sharding.group is None:
            return None
        plan = sharding.plan
        text = len(tables[0]) - sum(plan.tokens)
        return tuple(torch.cat([table[:text], table[text:][plan.span]]) for table in tables)

    return shard


@dataclass(frozen=True)
class _Family:
    """Differences between the supported transformers."""

    model: Any
    entry: str
    """First layer of the image tokens."""
    stock: Any
    processor: Callable[[Sharding], Any]
    shard_positions: Callable[[Sharding], Callable[..., Any]] | None
    """Hook on the table of positions; None if the first layer adds the positions."""


_QWEN = _Family(
    QwenImageTransformer2DModel, "img_in", QwenDoubleStreamAttnProcessor2_0, _QwenProcessor, _qwen_positions
)
_FLUX = _Family(FluxTransformer2DModel, "x_embedder", FluxAttnProcessor, _FluxProcessor, _flux_positions)

_SD3 = _Family(SD3Transformer2DModel, "pos_embed", JointAttnProcessor2_0, _SD3Processor, None)


def _is_attention(module: nn.Module) -> bool:
    return hasattr(module, "processor") and hasattr(module, "to_q")


def _family_of(transformer: nn.Module) -> _Family:
    """Return the family of a transformer; raises ConfigError if it cannot be split."""
    for family in (_QWEN, _FLUX, _SD3):
        if isinstance(transformer, family.model):
            break
    else:
        raise ConfigError(
            f"a {type(transformer).__name__} cannot be split over a crew, because only Qwen-Image's, FLUX's "
            "and SD3's transformers are supported; use degree 1. (A transformer compiled as a whole is another type: "
            "compile its repeated blocks instead.)"
        )
    if transformer._compiled_call_impl is not None:
        raise ConfigError(
            "a transformer that is compiled as a whole cannot be split over a crew, because exchanges break its graph; "
            "compile its repeated blocks instead (compile_repeated_blocks)."
        )
    if getattr(transformer, "zero_cond_t", False):
        raise ConfigError(
            "a Qwen-Image transformer with zero_cond_t cannot be split over a crew, because it modulates each token by "
            "its own index; use degree 1."
        )
    return family


def _checked_processor(layer: Any, family: _Family) -> Any:
    if type(layer.processor) not in (family.stock, RealJointAttention) or getattr(layer, "fused_projections", False):
        raise ConfigError(
            f"attention by {type(layer.processor).__name__}{' with fused projections' * layer.fused_projections} "
            f"cannot be split over a crew, because only {family.stock.__name__} with separate projections is "
            "supported; restore it, or use degree 1."
        )
    return layer.processor
