"""Detector for `data/scenes.py`: colour and contour, no learned weights.

Every visible blob gives at most one detection above the threshold, so an ambiguous blob is never two objects;
a blob that matches no shape is reported as UNKNOWN. The threshold is .3 in every task: GenEval's .9 for counting
is calibrated for Mask2Former and rejects slightly blurred but right scenes here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from spotlight.compute.data import scenes
from spotlight.compute.rewards.geneval.color_naming import PaletteNamer, to_lab
from spotlight.compute.rewards.geneval.detection import UNKNOWN, Box, Detection, Thresholds
from spotlight.compute.rewards.geneval.filters import Mask, dilated, eroded, median, smoothed
from spotlight.compute.rewards.geneval.shape_templates import overlaps
from spotlight.compute.rewards.protocol import Floats, Image

FOREGROUND = 14.0
SMALLEST = 0.008
"""Smallest area of a blob, as a share of the picture."""

NOISY = 0.012
SHAPE_SHARPNESS = 30.0
# Quality is 0 below the first overlap, 1 above the second.
SHAPE_QUALITY = (0.64, 0.86)
# Visibility is 0 at the first distance from the background, 1 at the second.
CONTRAST = (10.0, 35.0)
LEAST_CONFIDENCE = 0.02
SPLIT_SHARE = 0.2


@dataclass(frozen=True)
class _Picture:
    """A picture with the data that all its blobs share."""

    rgb: Floats
    lab: Floats
    background: Floats
    background_lab: Floats
    foreground: Mask


class SceneDetector:
    """Finds the shapes of the synthetic scenes in pictures of about their size."""

    version = "scene-detector-1"
    thresholds = Thresholds(default=0.3, counting=0.3)
    classes = frozenset(scenes.SHAPES)

    def __init__(self) -> None:
        self._names = PaletteNamer(scenes.PALETTE)
        self._palette = to_lab(np.array(list(scenes.PALETTE.values())) / 255.0)

    def detect(self, images: Sequence[Image]) -> list[tuple[Detection, ...]]:
        return [tuple(self._detections(image)) for image in images]

    def _detections(self, image: Image) -> Iterator[Detection]:
        picture = _prepared(image)
        least = SMALLEST * picture.foreground.size
        blobs, number = ndimage.label(picture.foreground)
        for index, window in enumerate(ndimage.find_objects(blobs, number), start=1):
            blob = blobs[window] == index
            if blob.sum() < least:
                continue
            for part in self._parts(picture.lab[window], blob, least):
                yield from self._objects(picture, part, window)

    def _parts(self, lab: Floats, blob: Mask, least: float) -> Iterator[Mask]:
        """The blob, or its pieces if shapes of several colours touch.

        A colour counts only where it fills the inside of a region: the rim of a red shape on white is pink.
        """
        distance = ((lab[:, :, None, :] - self._palette) ** 2).sum(axis=-1)
        nearest = distance.argmin(axis=-1)
        colors = [c for c in np.unique(nearest[blob]) if ((nearest == c) & blob).sum() >= least / 2]
        cores = [int(eroded((nearest == c) & blob).sum()) for c in colors]
        needed = max(2.0, SPLIT_SHARE * max(cores, default=0))
        allowed = [c for c, core in zip(colors, cores, strict=True) if core >= needed]
        if len(allowed) < 2:
            yield blob
            return
        choice = np.array(allowed)[distance[:, :, allowed].argmin(axis=-1)]
        for color in allowed:
            pieces, number = ndimage.label((choice == color) & blob)
            for piece in range(1, number + 1):
                if (pieces == piece).sum() >= least:
                    yield pieces == piece

    def _objects(self, picture: _Picture, part: Mask, window: tuple[slice, slice]) -> Iterator[Detection]:
        core = eroded(part)
        inside = core if core.sum() >= 2 else part
        # The median colour without the rim.
        lab = median(picture.lab[window][inside])
        alpha, top, left = _coverage(picture, part, window, median(picture.rgb[window][inside]))
        overlap = overlaps(alpha)
        quality = _ramp(float(overlap.max()), SHAPE_QUALITY)
        visible = _ramp(float(np.linalg.norm(lab - picture.background_lab)), CONTRAST)
        weight = np.exp(SHAPE_SHARPNESS * (overlap - overlap.max()))
        confidence = weight / weight.sum() * quality * visible
        box = _box(alpha, top, left)
        colors = self._names.of_lab(lab)
        best = int(confidence.argmax())
        for shape, value in enumerate(confidence):
            # Other shapes are halved, so that they stay below the threshold even in a tie.
            sure = float(value) if shape == best else float(value) / 2
            if sure >= LEAST_CONFIDENCE:
                yield Detection(class_name=scenes.SHAPES[shape], confidence=sure, box=box, colors=colors)
        if visible * (1.0 - quality) >= LEAST_CONFIDENCE:
            yield Detection(class_name=UNKNOWN, confidence=visible * (1.0 - quality), box=box, colors=colors)


def _ramp(value: float, limits: tuple[float, float]) -> float:
    low, high = limits
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _prepared(image: Image) -> _Picture:
    rgb = image.astype(np.float64) / 255.0
    noise = _noise(rgb)
    if noise > NOISY:
        rgb = smoothed(rgb, noise)
    lab = to_lab(rgb)
    background = median(_border(rgb))
    background_lab = median(_border(lab))
    distance = np.sqrt(((lab - background_lab) ** 2).sum(axis=-1))
    return _Picture(rgb, lab, background, background_lab, distance > FOREGROUND)


def _border(values: Floats) -> Floats:
    return np.concatenate([values[0], values[-1], values[1:-1, 0], values[1:-1, -1]])


def _noise(rgb: Floats) -> float:
    """Standard deviation of the noise: the median response of a filter that ignores planes and edges."""
    rows = rgb[:-2] - 2 * rgb[1:-1] + rgb[2:]
    response = rows[:, :-2] - 2 * rows[:, 1:-1] + rows[:, 2:]
    return float(median(np.abs(response).ravel())) / (0.6745 * 6.0)


def _coverage(picture: _Picture, part: Mask, window: tuple[slice, slice], color: Floats) -> tuple[Floats, int, int]:
    """The object's coverage of each pixel, with a rim of one pixel; and the top and left of the first pixel.

    An anti-aliased pixel is a mixture, so coverage is the projection on the line from background to object colour.
    """
    height, width = picture.foreground.shape
    top, left = max(0, window[0].start - 1), max(0, window[1].start - 1)
    bottom, right = min(height, window[0].stop + 1), min(width, window[1].stop + 1)
    own = np.zeros((bottom - top, right - left), dtype=np.bool_)
    inside_y, inside_x = window[0].start - top, window[1].start - left
    own[inside_y : inside_y + part.shape[0], inside_x : inside_x + part.shape[1]] = part
    rgb = picture.rgb[top:bottom, left:right]
    direction = color - picture.background
    length = max(float(direction @ direction), 1e-6)
    alpha = np.clip((rgb - picture.background) @ direction / length, 0.0, 1.0)
    rim = dilated(own) & ~picture.foreground[top:bottom, left:right]
    return np.where(own | rim, alpha, 0.0), top, left


def _box(alpha: Floats, top: int, left: int) -> Box:
    """The smallest box around the pixels with a coverage above one half."""
    solid = alpha > 0.5
    if not solid.any():
        solid = alpha >= alpha.max()
    rows, columns = np.flatnonzero(solid.any(axis=1)), np.flatnonzero(solid.any(axis=0))
    return Box(
        float(left + columns[0]),
        float(top + rows[0]),
        float(left + columns[-1] + 1),
        float(top + rows[-1] + 1),
    )
