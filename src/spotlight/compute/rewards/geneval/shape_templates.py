"""Matches a soft silhouette of any size and place with the four shapes.

A silhouette is resampled into a frame centred on its centroid and scaled by the root of its area, so one bank
of templates serves all sizes. The templates are resampled in the same way, at several radii, blurs and sub-pixel
places, so that they include the losses of resampling.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from spotlight.compute.data import scenes
from spotlight.compute.rewards.protocol import Floats

FRAME = 20
REACH = 1.02
"""Half the frame's side in units of the root of the area; the triangle's tip needs the most."""

_RADII = (4.9, 6.1, 7.5)
_PLACES = ((0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5))
_BLURS = (0.0, 0.6, 1.0)


def normalised(alpha: Floats) -> Floats | None:
    """The silhouette (coverage in [0, 1]) in its normalised frame, flattened; None if it is empty."""
    area = float(alpha.sum())
    if area <= 0:
        return None
    rows = np.arange(alpha.shape[0])
    columns = np.arange(alpha.shape[1])
    y = float(alpha.sum(axis=1) @ rows) / area
    x = float(alpha.sum(axis=0) @ columns) / area
    steps = np.linspace(-REACH, REACH, FRAME) * np.sqrt(area)
    # Bilinear interpolation is separable: one small matrix per axis.
    return (_tent(y + steps, rows) @ alpha @ _tent(x + steps, columns).T).ravel()


def _tent(positions: Floats, cells: NDArray[np.intp]) -> Floats:
    return np.maximum(0.0, 1.0 - np.abs(positions[:, None] - cells[None, :]))


@cache
def _bank() -> tuple[Floats, Floats]:
    """Templates of all shapes, the same number for each, in the order of `scenes.SHAPES`; and their areas."""
    templates = []
    for shape in scenes.SHAPES:
        for radius in _RADII:
            for place in _PLACES:
                silhouette = _drawn(shape, radius, place)
                for blur in _BLURS:
                    soft = ndimage.gaussian_filter(silhouette, blur) if blur else silhouette
                    template = normalised(soft)
                    assert template is not None
                    templates.append(template)
    bank = np.stack(templates)
    return bank, bank.sum(axis=1)


def _drawn(shape: str, radius: float, place: tuple[float, float]) -> Floats:
    side, fine = 32, scenes.SUPERSAMPLING
    grid = (np.arange(side * fine) + 0.5) / fine - side / 2
    inside = scenes.coverage(shape, (grid - place[0])[None, :], (grid - place[1])[:, None], radius)
    return np.asarray(inside.reshape(side, fine, side, fine).mean(axis=(1, 3)), dtype=np.float64)


def overlaps(alpha: Floats) -> Floats:
    """Best soft intersection over union with each of `scenes.SHAPES`."""
    silhouette = normalised(alpha)
    if silhouette is None:
        return np.zeros(len(scenes.SHAPES))
    bank, areas = _bank()
    common = np.minimum(bank, silhouette).sum(axis=1)
    ratio = common / (areas + silhouette.sum() - common)
    return np.asarray(ratio.reshape(len(scenes.SHAPES), -1).max(axis=1))
