"""Colour naming: probabilities over a palette by distance in CIE Lab, which approximates perceived distance."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from types import MappingProxyType
from typing import Protocol

import numpy as np

from spotlight.compute.rewards.protocol import Floats, Image

GENEVAL_PALETTE: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        "red": (215, 30, 35),
        "orange": (245, 135, 25),
        "yellow": (240, 215, 50),
        "green": (50, 145, 60),
        "blue": (40, 85, 200),
        "purple": (125, 55, 160),
        "pink": (245, 140, 185),
        "brown": (115, 75, 40),
        "black": (20, 20, 20),
        "white": (245, 245, 245),
    }
)
"""GenEval's ten colour names with a typical value each."""

_RGB_TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
_WHITE = _RGB_TO_XYZ.sum(axis=1)
_LINEAR_STEPS = 4096


class ColorNamer(Protocol):
    """Names the colour of a crop: a probability for each colour name.

    `version` changes whenever the same crop could get other names; it is part of the detector's version.
    """

    @property
    def version(self) -> str: ...

    def __call__(self, crop: Image) -> Mapping[str, float]: ...


@cache
def _linear_light() -> Floats:
    """sRGB's transfer curve as a table: computing a power per pixel would dominate the detector's time."""
    value = np.linspace(0.0, 1.0, _LINEAR_STEPS)
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def to_lab(rgb: Floats) -> Floats:
    """CIE Lab (D65) of sRGB values in [0, 1]; the last axis holds the channels."""
    index = np.rint(np.clip(rgb, 0.0, 1.0) * (_LINEAR_STEPS - 1)).astype(np.intp)
    xyz = _linear_light()[index] @ (_RGB_TO_XYZ / _WHITE[:, None]).T
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = f[..., 0], f[..., 1], f[..., 2]
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


@dataclass(frozen=True)
class PaletteNamer:
    """Nearest palette colours of the median colour of a crop's middle.

    A stand-in for GenEval's CLIP classifier on segmented crops; it ignores shading and texture.
    """

    palette: Mapping[str, tuple[int, int, int]]
    softness: float = 7.0

    @property
    def version(self) -> str:
        # In order, because the first of two equally likely names wins.
        content = repr((list(self.palette.items()), self.softness))
        return f"palette-1-{hashlib.blake2b(content.encode(), digest_size=8).hexdigest()}"

    @cached_property
    def _lab(self) -> Floats:
        return to_lab(np.array(list(self.palette.values())) / 255.0)

    def __call__(self, crop: Image) -> Mapping[str, float]:
        height, width = crop.shape[:2]
        # The corners of a box are mostly background.
        middle = crop[height // 4 : height - height // 4, width // 4 : width - width // 4].reshape(-1, 3)
        return self.of_lab(to_lab(np.median(middle, axis=0) / 255.0))

    def of_lab(self, lab: Floats) -> Mapping[str, float]:
        """Probability of each name: a softmax of the negative distances."""
        distance = np.linalg.norm(self._lab - lab, axis=1)
        weight = np.exp(-(distance - distance.min()) / self.softness)
        return dict(zip(self.palette, (weight / weight.sum()).tolist(), strict=True))
