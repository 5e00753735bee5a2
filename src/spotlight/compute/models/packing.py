"""Patches to tokens and back: the one place that defines the order of a patch's channels in a token.

Invariant: `unpatchify(patchify(x, p), p, C, H, W)` is `x`, and for p = 2 the order is that of diffusers'
packed latents (tests/unit/test_packing.py).
"""

from torch import Tensor

from spotlight.core.errors import SizeError


def patchify(image_BCHW: Tensor, p: int) -> Tensor:
    """tokens_BSC: S = (H/p)(W/p) in row-major order, C = channels * p * p, the channel varying slowest."""
    batch, channels, height, width = image_BCHW.shape
    if height % p or width % p:
        raise SizeError(
            f"An image of {height}x{width} cannot be cut into {p}x{p} patches, because both sides must be "
            f"multiples of {p}; use such a size."
        )
    rows, columns = height // p, width // p
    patches = image_BCHW.reshape(batch, channels, rows, p, columns, p).permute(0, 2, 4, 1, 3, 5)
    return patches.reshape(batch, rows * columns, channels * p * p)


def unpatchify(tokens_BSC: Tensor, p: int, channels: int, height: int, width: int) -> Tensor:
    """image_BCHW of `channels` x `height` x `width`, the inverse of `patchify`."""
    batch, tokens, depth = tokens_BSC.shape
    rows, columns = height // p, width // p
    if height % p or width % p or (tokens, depth) != (rows * columns, channels * p * p):
        raise SizeError(
            f"{tokens} tokens of {depth} channels are not {p}x{p} patches of {channels}x{height}x{width}, "
            f"because that has {rows * columns} tokens of {channels * p * p} channels; pass the size that they "
            f"were made for."
        )
    patches = tokens_BSC.reshape(batch, rows, columns, channels, p, p).permute(0, 3, 1, 4, 2, 5)
    return patches.reshape(batch, channels, height, width)
