"""Finds the lines of text in a picture and reads them in order.

A network gives each pixel a probability of lying in the shrunken core of a text line; the connected regions,
grown back, are the lines. Boxes are axis-aligned: slanted text is read with some of its surroundings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL.Image
import scipy.ndimage
from numpy.typing import NDArray

from spotlight.compute.rewards.ocr.recogniser import Reading, Recogniser, join
from spotlight.compute.rewards.ocr.text import normalise
from spotlight.compute.rewards.ocr.weights import ASSETS, PackagedFile, open_session
from spotlight.compute.rewards.protocol import Image

PPOCR_V6_TINY_DET = PackagedFile(
    "PP-OCRv6_det_tiny.onnx",
    1780590,
    "193bab7a04fca699a6c82e6abb5b81bdb28177f0abd4062552b04908dafb19f8",
)

PIXEL_THRESHOLD = 0.2
BOX_THRESHOLD = 0.4
GROWTH = 1.4
"""A core is grown by its area over its perimeter times this; the network is trained to shrink by the same amount."""

STRIDE = 32
SHORTEST_SIDE = 128
LONGEST_SIDE = 960
SMALLEST_CORE = 3
MAX_BOXES = 100

_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


@dataclass(frozen=True)
class TextBox:
    """Pixels `top .. bottom-1` by `left .. right-1`, and the mean probability of the core."""

    top: int
    left: int
    bottom: int
    right: int
    confidence: float

    @property
    def height(self) -> int:
        return self.bottom - self.top

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2

    def crop(self, image: Image) -> Image:
        return np.ascontiguousarray(image[self.top : self.bottom, self.left : self.right])


def reading_order(boxes: Sequence[TextBox]) -> list[TextBox]:
    """Boxes in rows from top to bottom, each from left to right; a row's boxes overlap its first box by half."""
    rows: list[list[TextBox]] = []
    for box in sorted(boxes, key=lambda box: box.middle):
        if rows and abs(box.middle - rows[-1][0].middle) < min(box.height, rows[-1][0].height) / 2:
            rows[-1].append(box)
        else:
            rows.append([box])
    return [box for row in rows for box in sorted(row, key=lambda box: box.left)]


def boxes_from_map(probability: NDArray[np.float32], height: int, width: int) -> list[TextBox]:
    """The text lines of a probability map, in pixels of its `height` x `width` picture."""
    regions, _ = scipy.ndimage.label(probability > PIXEL_THRESHOLD, structure=np.ones((3, 3)))
    scale_y, scale_x = height / probability.shape[0], width / probability.shape[1]
    boxes = []
    for label, (rows, columns) in enumerate(scipy.ndimage.find_objects(regions), start=1):
        tall, wide = rows.stop - rows.start, columns.stop - columns.start
        if min(tall, wide) < SMALLEST_CORE:
            continue
        confidence = float(probability[rows, columns][regions[rows, columns] == label].mean())
        if confidence < BOX_THRESHOLD:
            continue
        growth = tall * wide * GROWTH / (2 * (tall + wide))
        box = TextBox(
            top=max(0, int(np.floor((rows.start - growth) * scale_y))),
            left=max(0, int(np.floor((columns.start - growth) * scale_x))),
            bottom=min(height, int(np.ceil((rows.stop + growth) * scale_y))),
            right=min(width, int(np.ceil((columns.stop + growth) * scale_x))),
            confidence=confidence,
        )
        boxes.append(box)
    boxes.sort(key=lambda box: -box.confidence)
    return reading_order(boxes[:MAX_BOXES])


def working_size(height: int, width: int) -> tuple[int, int]:
    """Height and width at which a picture is searched: whole strides, small pictures enlarged, huge ones reduced."""
    scale = max(1.0, SHORTEST_SIDE / min(height, width))
    scale = min(scale, LONGEST_SIDE / max(height, width))
    return (
        max(STRIDE, round(height * scale / STRIDE) * STRIDE),
        max(STRIDE, round(width * scale / STRIDE) * STRIDE),
    )


class TextDetector:
    """Finds lines of text."""

    def __init__(self, weights: PackagedFile = PPOCR_V6_TINY_DET, folder: Path = ASSETS) -> None:
        self.weights = weights
        self._session = open_session(weights, folder)
        self._input: str = self._session.get_inputs()[0].name

    def find(self, image: Image) -> list[TextBox]:
        """The lines of text in reading order."""
        height, width = image.shape[:2]
        tall, wide = working_size(height, width)
        picture = PIL.Image.fromarray(image).resize((wide, tall), PIL.Image.Resampling.BILINEAR)
        bgr = np.asarray(picture)[:, :, ::-1] / np.float32(255)
        # The published mean and deviation are in RGB order, but the network was trained with them on BGR input.
        batch = ((bgr - _MEAN) / _DEVIATION).transpose(2, 0, 1)[None]
        probability = self._session.run(None, {self._input: np.ascontiguousarray(batch)})[0][0, 0]
        return boxes_from_map(probability, height, width)


class Reader:
    """Reads all text of a picture: detected lines, each recognised, joined in reading order."""

    def __init__(self, detector: TextDetector, recogniser: Recogniser) -> None:
        self.detector = detector
        self.recogniser = recogniser

    def read(self, images: Sequence[Image], wanted: Sequence[str]) -> list[Reading]:
        """One reading per image, in order; an image without text gives an empty reading."""
        found = [[box.crop(image) for box in self.detector.find(image)] for image in images]
        owners = [index for index, crops in enumerate(found) for _ in crops]
        lines = self.recogniser.read([crop for crops in found for crop in crops], [wanted[index] for index in owners])
        by_image: list[list[Reading]] = [[] for _ in images]
        for index, line in zip(owners, lines, strict=True):
            by_image[index].append(line)
        return [join(parts, len(normalise(text))) for parts, text in zip(by_image, wanted, strict=True)]
