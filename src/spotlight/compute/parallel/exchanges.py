"""Exchanges of a crew with a gradient: the backward of an exchange is the reverse exchange.

Every rank computes the loss of the whole output from the gathered tokens. The backward of that gather takes the rank's
own tokens alone, so the gradients of the ranks add up to the gradient of one loss, text included: each rank has the
part that went through its own tokens and heads (tests/processes/test_gang_sequence.py).

All ranks build the same graph, so their backwards, and the forwards that checkpointing repeats in them, exchange in the
same order.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spotlight.compute.parallel.group import CrewGroup


def all_to_all(group: CrewGroup, parts: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """`CrewGroup.all_to_all`, with a gradient if gradients are on."""
    if not torch.is_grad_enabled():
        return group.all_to_all(parts, shapes)
    received = list(_AllToAll.apply(group, shapes, *parts))
    received.insert(group.rank, parts[group.rank])
    return received


def all_gather(group: CrewGroup, shard_BSC: Tensor, sizes: Sequence[int]) -> Tensor:
    """`CrewGroup.all_gather`, with a gradient of this rank's shard if gradients are on."""
    if not torch.is_grad_enabled():
        return group.all_gather(shard_BSC, sizes)
    gathered: Tensor = _AllGather.apply(group, sizes, shard_BSC)
    return gathered


class _AllToAll(torch.autograd.Function):
    """Returns the parts of the peers; the own part does not pass through it."""

    @staticmethod
    def forward(ctx: Any, group: CrewGroup, shapes: Sequence[tuple[int, ...]], *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        ctx.shapes = [tuple(part.shape) for part in parts]
        received = group.all_to_all(parts, shapes)
        return tuple(part for rank, part in enumerate(received) if rank != group.rank)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        group: CrewGroup = ctx.group
        sent = list(gradients)
        sent.insert(group.rank, gradients[0].new_empty(0))
        received: list[Tensor | None] = list(group.all_to_all(sent, ctx.shapes))
        received[group.rank] = None
        return (None, None, *received)


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: CrewGroup, sizes: Sequence[int], shard_BSC: Tensor) -> Tensor:
        ctx.rank, ctx.sizes = group.rank, list(sizes)
        return group.all_gather(shard_BSC, sizes)

    @staticmethod
    def backward(ctx: Any, gradient_BSC: Tensor) -> tuple[None, None, Tensor]:
        return None, None, gradient_BSC.split(ctx.sizes, dim=1)[ctx.rank].contiguous()
