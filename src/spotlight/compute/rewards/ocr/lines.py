"""Runs a recognition network over lines of text, and selects from its output.

The network gives each frame a probability for each of thousands of characters. A runner returns only the likeliest
class and the posteriors of the blank and of the wanted letters. Runs use the onnxruntime runner defined here; the other
one is for programs of one process on a GPU (`on_gpu/`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from spotlight.compute.rewards.ocr.text import Posteriors
from spotlight.compute.rewards.ocr.weights import PackagedFile, open_session
from spotlight.compute.rewards.protocol import Image

HEIGHT = 48
FRAME = 8
"""Pixels of width per output frame."""

MAX_WIDTH = 3200
BLANK = 0

Classes: TypeAlias = tuple[tuple[int, ...], ...]
"""For each letter of a text, the network's classes that show it; empty for a letter outside its alphabet."""


@dataclass(frozen=True, eq=False)
class Frames:
    """Per frame of one line: the likeliest class, and the posteriors of blank and of each wanted letter."""

    best: NDArray[np.int64]
    blank: Posteriors
    letters: Posteriors


class LineRunner(Protocol):
    """A recognition network on some device."""

    name: str
    """Name of the arithmetic in a reward's version, because last bits differ; '' for the reference."""
    batch: int
    """Lines per batch."""

    def __call__(self, images: Sequence[Image], wanted: Sequence[Classes]) -> list[Frames]:
        """Return the frames of each image, in order; images of one call have one `fitted_width`."""
        ...


def fitted_width(image: Image) -> int:
    """Width of an image scaled to the network's height."""
    height, width = image.shape[:2]
    return min(max(round(width * HEIGHT / height / FRAME), 2), MAX_WIDTH // FRAME) * FRAME


def fit_line(image: Image) -> NDArray[np.float32]:
    """The image as the network's input: 3 x 48 x width, BGR, in [-1, 1]."""
    size = (fitted_width(image), HEIGHT)
    picture = PIL.Image.fromarray(image).resize(size, PIL.Image.Resampling.BILINEAR)
    bgr = np.asarray(picture)[:, :, ::-1].transpose(2, 0, 1)
    return bgr.astype(np.float32) / np.float32(127.5) - np.float32(1)


class OnnxLines:
    """The reference: onnxruntime on one CPU thread, fastest at 8 to 16 lines."""

    name = ""
    batch = 16

    def __init__(self, weights: PackagedFile, folder: Path) -> None:
        self._session = open_session(weights, folder)
        self._input: str = self._session.get_inputs()[0].name

    def __call__(self, images: Sequence[Image], wanted: Sequence[Classes]) -> list[Frames]:
        batch = np.stack([fit_line(image) for image in images])
        output = self._session.run(None, {self._input: batch})[0]
        best = output.argmax(axis=2)
        return [
            Frames(path, posteriors[:, BLANK].copy(), _letters(posteriors, classes))
            for path, posteriors, classes in zip(best, output, wanted, strict=True)
        ]


def _letters(posteriors: Posteriors, wanted: Classes) -> Posteriors:
    letters = np.zeros((len(posteriors), len(wanted)), np.float32)
    for column, classes in enumerate(wanted):
        for index in classes:
            letters[:, column] += posteriors[:, index]
    return letters
