"""Reading one line of text per image with a CTC recogniser.

Invariant: a reading depends on its image and wanted text only, not on the batch it is computed in: images
share a batch only at equal width, so none is padded (tests/unit/test_ocr.py).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from spotlight.compute.rewards.ocr.text import Posteriors, normalise
from spotlight.compute.rewards.ocr.weights import ASSETS, WeightFile, open_session
from spotlight.compute.rewards.protocol import Image

HEIGHT = 48
FRAME = 8
"""Pixels of width per output frame."""

MAX_WIDTH = 3200
BATCH = 16
BLANK = 0


@dataclass(frozen=True)
class RecogniserConfig:
    """A recognition network and the characters of its classes; class 0 is blank and the last one a space."""

    name: str
    weights: WeightFile
    alphabet: WeightFile


PPOCR_V6_TINY = RecogniserConfig(
    name="PP-OCRv6 tiny",
    weights=WeightFile(
        "PP-OCRv6_rec_tiny.onnx",
        4462639,
        "9ef676d6ed3c88256a2d92c640c44f25b0c40947e111b14b8be8f594091563e6",
    ),
    alphabet=WeightFile(
        "ppocrv6_tiny_dict.txt",
        34060,
        "2af150bab777d86fa1ce821f6a37eabea90f1bb99ab9c41f031262e892a747bc",
    ),
)

EN_PPOCR_V4 = RecogniserConfig(
    name="en_PP-OCRv4",
    weights=WeightFile(
        "en_PP-OCRv4_rec.onnx",
        7992123,
        "fb0582182a85f259a11437b7795ed50a452a6f447b738a2c5dd89e3da93dce3b",
    ),
    # The network's own metadata holds a web page where its characters should be.
    alphabet=WeightFile(
        "en_dict.txt",
        284,
        "7d67015c5610ca41e55b1b68a7d70655e76948c0ff0592ee2331bdf0fba7f4ba",
    ),
)


@dataclass(frozen=True, eq=False)
class Reading:
    """The text as decoded, and per frame the posteriors of blank and of each letter of the wanted text."""

    text: str
    letters: Posteriors
    blank: Posteriors


def join(readings: Sequence[Reading], length: int) -> Reading:
    """Readings one after the other, with a blank frame at each seam so that no letters merge across it."""
    letters: list[Posteriors] = [np.zeros((0, length), np.float32)]
    blank: list[Posteriors] = [np.zeros(0, np.float32)]
    for reading in readings:
        letters += [reading.letters, np.zeros((1, length), np.float32)]
        blank += [reading.blank, np.ones(1, np.float32)]
    text = "".join(reading.text for reading in readings)
    return Reading(text, np.concatenate(letters), np.concatenate(blank))


def fit_line(image: Image) -> NDArray[np.float32]:
    """The image as the network takes it: 3 x 48 x width, BGR, in [-1, 1]."""
    height, width = image.shape[:2]
    frames = min(max(round(width * HEIGHT / height / FRAME), 2), MAX_WIDTH // FRAME)
    picture = PIL.Image.fromarray(image).resize((frames * FRAME, HEIGHT), PIL.Image.Resampling.BILINEAR)
    bgr = np.asarray(picture)[:, :, ::-1].transpose(2, 0, 1)
    return bgr.astype(np.float32) / np.float32(127.5) - np.float32(1)


class Recogniser:
    """Reads images that each hold one line of text."""

    def __init__(self, config: RecogniserConfig, folder: Path = ASSETS) -> None:
        self.config = config
        lines = config.alphabet.load(folder).decode("utf-8").replace("\r\n", "\n")
        self._characters = ["", *lines.removesuffix("\n").split("\n"), " "]
        self._session = open_session(config.weights, folder)
        self._input: str = self._session.get_inputs()[0].name
        classes: dict[str, list[int]] = defaultdict(list)
        for index, character in enumerate(self._characters):
            classes[character.lower()].append(index)
        self._classes = dict(classes)

    def read(self, images: Sequence[Image], wanted: Sequence[str]) -> list[Reading]:
        """One reading per image, in order; `wanted[i]` chooses the letters of reading i's posteriors."""
        lines = [fit_line(image) for image in images]
        same_width: dict[int, list[int]] = defaultdict(list)
        for index, line in enumerate(lines):
            same_width[line.shape[2]].append(index)
        readings: dict[int, Reading] = {}
        for members in same_width.values():
            for start in range(0, len(members), BATCH):
                batch = members[start : start + BATCH]
                output = self._session.run(None, {self._input: np.stack([lines[index] for index in batch])})[0]
                best = output.argmax(axis=2)
                for index, posteriors, path in zip(batch, output, best, strict=True):
                    letters = self._letters(posteriors, normalise(wanted[index]))
                    readings[index] = Reading(self._decode(path), letters, posteriors[:, BLANK].copy())
        return [readings[index] for index in range(len(images))]

    def _decode(self, path: NDArray[np.int64]) -> str:
        changes = np.flatnonzero(np.diff(path, prepend=BLANK))
        return "".join([self._characters[path[frame]] for frame in changes])

    def _letters(self, posteriors: Posteriors, wanted: str) -> Posteriors:
        letters = np.zeros((len(posteriors), len(wanted)), np.float32)
        for column, letter in enumerate(wanted):
            for index in self._classes.get(letter, ()):
                letters[:, column] += posteriors[:, index]
        return letters
