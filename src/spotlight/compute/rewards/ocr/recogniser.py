"""Reads one line of text per image with a CTC recogniser.

Invariant: a reading depends only on its image and wanted text, not on its batch: images share a batch only at
equal width, so none is padded (tests/unit/test_ocr.py).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spotlight.compute.rewards.ocr.lines import BLANK, Classes, LineRunner, OnnxLines, fitted_width
from spotlight.compute.rewards.ocr.text import Posteriors, normalise
from spotlight.compute.rewards.ocr.weights import ASSETS, PackagedFile
from spotlight.compute.rewards.protocol import Image


@dataclass(frozen=True)
class RecogniserConfig:
    """A recognition network and the characters of its classes; class 0 is blank and the last one is a space."""

    name: str
    weights: PackagedFile
    alphabet: PackagedFile


PPOCR_V6_TINY = RecogniserConfig(
    name="PP-OCRv6 tiny",
    weights=PackagedFile(
        "PP-OCRv6_rec_tiny.onnx",
        4462639,
        "9ef676d6ed3c88256a2d92c640c44f25b0c40947e111b14b8be8f594091563e6",
    ),
    alphabet=PackagedFile(
        "ppocrv6_tiny_dict.txt",
        34060,
        "2af150bab777d86fa1ce821f6a37eabea90f1bb99ab9c41f031262e892a747bc",
    ),
)

EN_PPOCR_V4 = RecogniserConfig(
    name="en_PP-OCRv4",
    weights=PackagedFile(
        "en_PP-OCRv4_rec.onnx",
        7992123,
        "fb0582182a85f259a11437b7795ed50a452a6f447b738a2c5dd89e3da93dce3b",
    ),
    # The network's own metadata holds a web page in place of its characters.
    alphabet=PackagedFile(
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


class Recogniser:
    """Reads images that each hold one line of text."""

    def __init__(self, config: RecogniserConfig, folder: Path = ASSETS) -> None:
        self.config = config
        self._folder = folder
        lines = config.alphabet.load(folder).decode("utf-8").replace("\r\n", "\n")
        self._characters = ["", *lines.removesuffix("\n").split("\n"), " "]
        self._runner: LineRunner = OnnxLines(config.weights, folder)
        classes: dict[str, list[int]] = defaultdict(list)
        for index, character in enumerate(self._characters):
            classes[character.lower()].append(index)
        self._classes = {letter: tuple(indices) for letter, indices in classes.items()}

    @property
    def runner(self) -> str:
        """Name of the runner's arithmetic; '' for the reference."""
        return self._runner.name

    def use_torch(self, device: str) -> None:
        """Read with torch on this device from now on."""
        # Reward processes never load torch.
        from spotlight.compute.rewards.ocr.on_gpu.torch_lines import TorchLines

        self._runner = TorchLines(self.config.weights, self._folder, device)

    def read(self, images: Sequence[Image], wanted: Sequence[str]) -> list[Reading]:
        """One reading per image, in order; `wanted[i]` chooses the letters of reading i's posteriors."""
        same_width: dict[int, list[int]] = defaultdict(list)
        for index, image in enumerate(images):
            same_width[fitted_width(image)].append(index)
        classes = {text: self._classes_of(text) for text in dict.fromkeys(wanted)}
        readings: dict[int, Reading] = {}
        for members in same_width.values():
            for start in range(0, len(members), self._runner.batch):
                batch = members[start : start + self._runner.batch]
                found = self._runner([images[index] for index in batch], [classes[wanted[index]] for index in batch])
                for index, frames in zip(batch, found, strict=True):
                    readings[index] = Reading(self._decode(frames.best), frames.letters, frames.blank)
        return [readings[index] for index in range(len(images))]

    def _classes_of(self, text: str) -> Classes:
        return tuple(self._classes.get(letter, ()) for letter in normalise(text))

    def _decode(self, path: NDArray[np.int64]) -> str:
        changes = np.flatnonzero(np.diff(path, prepend=BLANK))
        return "".join([self._characters[path[frame]] for frame in changes])
