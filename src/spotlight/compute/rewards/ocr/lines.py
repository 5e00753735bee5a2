"""Running a recognition network over lines of text, and what is kept of its output.

The network gives each frame a probability of each of thousands of characters; only the likeliest one, the blank's and
those of the wanted letters are ever used, so that is all that a runner hands out. The runner of every run is here, with
onnxruntime; the other one is for programs of one process on a GPU (`on_gpu/`).
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
"""For each letter of a text, the network's classes that show it; none for a letter that it does not know."""


@dataclass(frozen=True, eq=False)
class Frames:
    """Per frame of one line: the likeliest class, and the posteriors of blank and of each wanted letter."""

    best: NDArray[np.int64]
    blank: Posteriors
    letters: Posteriors


class LineRunner(Protocol):
    """A recognition network on some device."""

    name: str
    """Stands for the arithmetic in a reward's version, because last bits differ; '' for the reference."""
    batch: int
    """Lines that it takes at once."""

    def __call__(self, images: Sequence[Image], wanted: Sequence[Classes]) -> list[Frames]:
        """One answer per image, in order; images of one call have one `fitted_width`."""
        ...


def fitted_width(image: Image) -> int:
    """How wide an image is once it is as high as the network takes it."""
    height, width = image.shape[:2]
    return min(max(round(width * HEIGHT / height / FRAME), 2), MAX_WIDTH // FRAME) * FRAME


def fit_line(image: Image) -> NDArray[np.float32]:
    """The image as the network takes it: 3 x 48 x width, BGR, in [-1, 1]."""
    size = (fitted_width(image), HEIGHT)
    picture = PIL.Image.fromarray(image).resize(size, PIL.Image.Resampling.BILINEAR)
    bgr = np.asarray(picture)[:, :, ::-1].transpose(2, 0, 1)
    return bgr.astype(np.float32) / np.float32(127.5) - np.float32(1)


class OnnxLines:
    """The reference: onnxruntime on one CPU thread, which is quickest at 8 to 16 lines."""

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
