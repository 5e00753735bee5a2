"""Orders that the ranks of a test carry out (see parallel_ranks.py); imported once, by the fork server."""

import hashlib
import os
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import torch
from diffusers import FluxTransformer2DModel, QwenImageTransformer2DModel, SD3Transformer2DModel
from parallel_members import CrewMember, current, join, settle
from parallel_ranks import Problem
from torch import Tensor, nn

from spotlight.compute.models import families
from spotlight.compute.parallel import sharding as sharding_module
from spotlight.compute.parallel.sharding import Sharding
from spotlight.core.errors import SpotlightError

# Before any kernel runs, so that no thread pool exists when a rank is forked.
torch.set_num_threads(1)

__all__ = ["join"]
HEADS, TEXT = 12, 24
GRIDS = {1024: (32, 32), 2560: (40, 64), 6400: (80, 80), 48: (4, 12), 1020: (30, 34), 255: (15, 17)}


@cache
def model(name: str) -> nn.Module:
    torch.manual_seed(3)
    if name == "words":
        return families.load("words").transformer
    if name == "qwen":
        return QwenImageTransformer2DModel(
            in_channels=16, out_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=HEADS,
            joint_attention_dim=32, axes_dims_rope=(2, 2, 4),
        ).eval()  # fmt: skip
    if name == "flux":
        return FluxTransformer2DModel(
            in_channels=16, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=HEADS,
            joint_attention_dim=32, pooled_projection_dim=16, axes_dims_rope=(4, 6, 6),
        ).eval()  # fmt: skip
    if name == "sd3":
        return SD3Transformer2DModel(
            sample_size=64, in_channels=4, out_channels=4, num_layers=3, attention_head_dim=16,
            num_attention_heads=HEADS, joint_attention_dim=32, caption_projection_dim=16 * HEADS,
            pooled_projection_dim=16, pos_embed_max_size=96, dual_attention_layers=(0, 1), qk_norm="rms_norm",
        ).eval()  # fmt: skip
    raise KeyError(name)


@cache
def sharding(name: str) -> Sharding:
    return Sharding(model(name))


@torch.no_grad()
def forward(name: str, tokens: int, rows: int) -> Tensor:
    """One forward of a random batch with padded text, over the group of this rank."""
    sharding(name).bind(current())
    generator = torch.Generator().manual_seed(tokens + rows)
    transformer: Any = model(name)
    config = transformer.config
    x = torch.randn(rows, tokens, config.in_channels, generator=generator)
    text = torch.randn(rows, TEXT, config.joint_attention_dim, generator=generator)
    lengths = torch.tensor([[1 + 5 * row % TEXT] for row in range(rows)])
    sigma = torch.rand(rows, generator=generator)
    mask = torch.arange(TEXT) < lengths
    if name == "sd3":
        height, width = GRIDS[tokens]
        return transformer(
            hidden_states=torch.randn(rows, config.in_channels, 2 * height, 2 * width, generator=generator),
            encoder_hidden_states=text, timestep=1000 * sigma,
            pooled_projections=torch.randn(rows, config.pooled_projection_dim, generator=generator), return_dict=False,
        )[0]  # fmt: skip
    if name == "flux":
        return _flux(transformer, x, text, sigma, mask, generator)
    return transformer(
        hidden_states=x, encoder_hidden_states=text, encoder_hidden_states_mask=mask, timestep=sigma,
        img_shapes=[[(1, *GRIDS[tokens])]] * rows, return_dict=False,
    )[0]  # fmt: skip


def _flux(transformer: Any, x: Tensor, text: Tensor, sigma: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
    rows, tokens, _ = x.shape
    _, width = GRIDS[tokens]
    grid = torch.stack([torch.zeros(tokens), torch.arange(tokens) // width, torch.arange(tokens) % width], dim=1)
    whole = torch.cat([mask, torch.ones(rows, tokens, dtype=torch.bool)], dim=1)[:, None, None, :]
    return transformer(
        hidden_states=x, encoder_hidden_states=text, timestep=sigma, img_ids=grid, txt_ids=torch.zeros(TEXT, 3),
        pooled_projections=torch.randn(rows, transformer.config.pooled_projection_dim, generator=generator),
        joint_attention_kwargs={"attention_mask": whole}, return_dict=False,
    )[0]  # fmt: skip


def digest(name: str, tokens: int, rows: int) -> str:
    return hashlib.blake2b(forward(name, tokens, rows).numpy().tobytes(), digest_size=16).hexdigest()


def values(name: str, tokens: int, rows: int) -> Any:
    return forward(name, tokens, rows).numpy()


def permute_keys() -> None:
    """Attend with image keys before text keys: equal only in exact arithmetic."""
    stock = sharding_module._stock_attention

    def permuted(backend: Any, mask: Tensor | None) -> Any:
        attend = stock(backend, None if mask is None else mask.roll(-TEXT, dims=-1))
        return lambda query, key, value: attend(query, key.roll(-TEXT, dims=1), value.roll(-TEXT, dims=1))

    sharding_module._stock_attention = permuted


def serve(link: Connection) -> None:
    """Carry out orders until the test ends."""
    orders = globals() | CrewMember(link).orders
    while True:
        try:
            order, arguments = link.recv()
        except EOFError:
            os._exit(0)
        try:
            link.send(orders[order](*arguments))
        except SpotlightError as error:
            link.send(Problem(type(error).__name__, str(error), getattr(error, "waited_for", None)))


def footprint() -> tuple[int, int]:
    """Open files and threads of this rank after the teardown of old groups."""
    assert settle()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def exchange(times: int) -> str:
    """Run all-to-alls one after another; returns the digest of the received tensors."""
    group = current()
    assert group is not None
    hasher = hashlib.blake2b(digest_size=16)
    shapes = [(1000 + rank,) for rank in range(group.degree)]
    for number in range(times):
        parts = [torch.full((1000 + group.rank,), float(number)) for _ in range(group.degree)]
        for part in group.all_to_all(parts, shapes):
            hasher.update(part.numpy().tobytes())
    return hasher.hexdigest()
