"""Pillow's bilinear resizing of 8-bit pictures as one matrix per axis, so that a device can resize a whole batch.

Pillow weighs pixels with integers of 22 fractional bits and rounds to 8 bits after each axis. All sums stay below
2**31, so products in float64 are exact, and the result is bit-identical to Pillow's. The order of the axes depends on
the size and on Pillow's version, so both orders are compared with Pillow once per size. Invariant: if neither matches,
`resizing` returns None (tests/unit/test_ocr_resize.py).
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
import PIL.Image
from numpy.typing import NDArray

FRACTION = 1 << 22
"""Pillow's fixed point: 32 bits less 8 of the pixel and 2 to spare."""


class AxisOrder(StrEnum):
    """The axis that is resized and rounded first."""

    ACROSS = "across"
    DOWN = "down"


@dataclass(frozen=True, eq=False)
class Resizing:
    """Resizing between two sizes: `down` @ picture @ `across`, in this order."""

    down: NDArray[np.float64]
    across: NDArray[np.float64]
    order: AxisOrder

    def apply(self, pixels: Any, down: Any, across: Any) -> Any:
        """Resize float64 arrays or tensors, pixels in the last two axes; the matrices are on the pixels' device."""
        if self.order is AxisOrder.ACROSS:
            return _rounded(down @ _rounded(pixels @ across))
        return _rounded(_rounded(down @ pixels) @ across)


@lru_cache(maxsize=256)
def resizing(height: int, width: int, to_height: int, to_width: int) -> Resizing | None:
    """The resizing of the installed Pillow; None if it matches neither order."""
    probe = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    expected = PIL.Image.fromarray(probe).resize((to_width, to_height), PIL.Image.Resampling.BILINEAR)
    pixels = probe.transpose(2, 0, 1).astype(np.float64)
    down, across = weights(height, to_height), weights(width, to_width).T
    for order in AxisOrder:
        candidate = Resizing(down, across, order)
        if np.array_equal(candidate.apply(pixels, down, across), np.asarray(expected).transpose(2, 0, 1)):
            return candidate
    return None


def weights(source: int, target: int) -> NDArray[np.float64]:
    """`target` x `source` whole numbers: row i holds the source pixels' weights in pixel i, in units of 1/FRACTION."""
    scale = source / target
    # Enlarging mixes two neighbours per pixel; reducing spreads the filter over all source pixels of a target pixel.
    reach = max(scale, 1.0)
    matrix = np.zeros((target, source))
    for row in range(target):
        centre = (row + 0.5) * scale
        first = max(0, int(centre - reach + 0.5))
        last = min(source, int(centre + reach + 0.5))
        # In Pillow's order of operations: the last bit decides some roundings.
        tent = np.maximum(0.0, 1.0 - np.abs((np.arange(first, last) - centre + 0.5) * (1.0 / reach)))
        total = sum(tent.tolist())
        matrix[row, first:last] = np.floor(0.5 + tent / total * FRACTION)
    return matrix


def _rounded(sums: Any) -> Any:
    return ((sums + FRACTION // 2) // FRACTION).clip(0, 255)
