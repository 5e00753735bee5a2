"""Filters of the scene detector; they run for every picture and blob, on a few hundred pixels, where calls into general
libraries would cost more than the arithmetic.

Invariant: each result is bit-identical to the general form's (tests/unit/test_scene_filters.py).
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from spotlight.compute.rewards.protocol import Floats

Mask: TypeAlias = NDArray[np.bool_]

REACH = 2
SPREAD = 1.2


def median(values: Floats) -> Floats:
    """numpy.median over the first axis, for finite values."""
    middle = len(values) // 2
    if len(values) % 2:
        return np.asarray(np.partition(values, middle, axis=0)[middle])
    ordered = np.partition(values, (middle - 1, middle), axis=0)
    return np.asarray((ordered[middle - 1] + ordered[middle]) / 2)


def eroded(mask: Mask) -> Mask:
    """The mask without pixels that touch the outside or the edge, up, down, left or right."""
    core = np.zeros_like(mask)
    inner = core[1:-1, 1:-1]
    np.logical_and(mask[:-2, 1:-1], mask[2:, 1:-1], out=inner)
    inner &= mask[1:-1, :-2]
    inner &= mask[1:-1, 2:]
    inner &= mask[1:-1, 1:-1]
    return core


def dilated(mask: Mask) -> Mask:
    """The mask with all pixels that touch it, up, down, left or right."""
    grown = mask.copy()
    grown[1:] |= mask[:-1]
    grown[:-1] |= mask[1:]
    grown[:, 1:] |= mask[:, :-1]
    grown[:, :-1] |= mask[:, 1:]
    return grown


_OFFSETS = [(dy, dx) for dy in range(-REACH, REACH + 1) for dx in range(-REACH, REACH + 1)]
_HALF = [(dy, dx) for dy, dx in _OFFSETS if (dy, dx) >= (0, 0)]


def smoothed(rgb: Floats, noise: float) -> Floats:
    """Bilateral filter: smooths differences up to the noise, so edges and contours stay."""
    height, width = rgb.shape[:2]
    padded_HWC = np.pad(rgb, ((REACH, REACH), (REACH, REACH), (0, 0)), mode="reflect")
    padded_CHW = np.ascontiguousarray(padded_HWC.transpose(2, 0, 1))
    # Weights are symmetric, so half of the offsets give the weights of all.
    weight_of = {offset: _weights(padded_HWC, *offset, noise) for offset in _HALF}
    total_CHW = np.zeros((rgb.shape[2], height, width))
    weights_HW = np.zeros((height, width))
    for dy, dx in _OFFSETS:
        rows = slice(REACH + dy, REACH + dy + height)
        columns = slice(REACH + dx, REACH + dx + width)
        if (dy, dx) in weight_of:
            weight_HW = weight_of[dy, dx][REACH : REACH + height, REACH : REACH + width]
        else:
            weight_HW = weight_of[-dy, -dx][rows, columns]
        total_CHW += weight_HW * padded_CHW[:, rows, columns]
        weights_HW += weight_HW
    return np.ascontiguousarray((total_CHW / weights_HW).transpose(1, 2, 0))


def _weights(padded_HWC: Floats, dy: int, dx: int, noise: float) -> Floats:
    """Weights at (y, x) between that pixel and the one at (y + dy, x + dx); 0 if one of them is outside."""
    height, width = padded_HWC.shape[:2]
    columns = slice(max(0, -dx), width - max(0, dx))
    shifted = slice(max(0, dx), width - max(0, -dx))
    difference = padded_HWC[dy:, shifted] - padded_HWC[: height - dy, columns]
    squared = np.einsum("hwc,hwc->hw", difference, difference)
    scale = 1.0 / (2 * 3 * (2.2 * noise) ** 2)
    weights = np.zeros((height, width))
    weights[: height - dy, columns] = np.exp(-squared * scale - (dx * dx + dy * dy) / (2 * SPREAD**2))
    return weights
