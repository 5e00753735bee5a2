"""The OCR rewards: how well the text in an image matches the text its prompt asks for.

`ocr`, `ocr_exact` and `ocr_graded` read with the same network and differ in the score that is trained on;
`ocr_judge` reads with another network, so that a policy which learns to please the first one is found out.

Invariant: totals and components are finite and in [0, 1] (tests/unit/test_ocr.py).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from spotlight.compute.rewards.ocr import text
from spotlight.compute.rewards.ocr.detector import Detector, Reader
from spotlight.compute.rewards.ocr.recogniser import (
    EN_PPOCR_V4,
    PPOCR_V6_TINY,
    Reading,
    Recogniser,
    RecogniserConfig,
)
from spotlight.compute.rewards.ocr.weights import ASSETS
from spotlight.compute.rewards.protocol import Image, Scores
from spotlight.core.errors import RewardError
from spotlight.core.types import Prompt

LINE_HEIGHT = 64
"""Images up to this height are one line of text; taller ones are searched for lines first."""


class _OcrBase:
    """Reads each image and compares the text with the target; subclasses choose network and total."""

    name: str
    config: ClassVar[RecogniserConfig] = PPOCR_V6_TINY
    total: ClassVar[str]
    components: ClassVar[tuple[str, ...]] = ("edit", "exact")

    def __init__(self, folder: Path = ASSETS) -> None:
        self._recogniser = Recogniser(self.config, folder)
        detector = Detector(folder=folder)
        self._reader = Reader(detector, self._recogniser)
        tags = (self.config.weights.tag, self.config.alphabet.tag, detector.weights.tag)
        self.version = f"{'-'.join(tags)}-s{text.SCORING_VERSION}"

    def score(self, images: Sequence[Image], prompts: Sequence[Prompt]) -> Scores:
        """One score per image, each against its own prompt's target."""
        if len(images) != len(prompts):
            raise RewardError(
                f"Reward '{self.name}' was given {len(images)} images and {len(prompts)} prompts, but each "
                "image is scored against its own prompt; pass one prompt per image."
            )
        for index, image in enumerate(images):
            self._check(index, image)
        targets = [text.target_of(prompt) for prompt in prompts]
        readings = self._read(images, targets)
        columns = {
            component: np.array(
                [_compare(component, reading, target) for reading, target in zip(readings, targets, strict=True)],
                dtype=np.float64,
            )
            for component in self.components
        }
        return Scores(total=columns[self.total], components=columns)

    def _check(self, index: int, image: Image) -> None:
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise RewardError(
                f"Image {index} has shape {image.shape} and type {image.dtype}, but reward '{self.name}' "
                "reads height x width x 3 pixels of uint8; convert it first."
            )

    def _read(self, images: Sequence[Image], targets: Sequence[str]) -> list[Reading]:
        lines = [index for index, image in enumerate(images) if len(image) <= LINE_HEIGHT]
        pictures = [index for index, image in enumerate(images) if len(image) > LINE_HEIGHT]
        readings: dict[int, Reading] = {}
        for reader, members in ((self._recogniser, lines), (self._reader, pictures)):
            chosen = reader.read([images[index] for index in members], [targets[index] for index in members])
            readings.update(zip(members, chosen, strict=True))
        return [readings[index] for index in range(len(images))]


def _compare(component: str, reading: Reading, target: str) -> float:
    if component == "edit":
        return text.edit_similarity(reading.text, target)
    if component == "exact":
        return text.exact_match(reading.text, target)
    return text.graded(reading.text, reading.letters, reading.blank, target)


class OcrReward(_OcrBase):
    """Flow-GRPO's edit similarity; text around the target goes unpunished."""

    name = "ocr"
    total = "edit"


class OcrExact(_OcrBase):
    """1 where the image shows the target and nothing else, up to case and spaces."""

    name = "ocr_exact"
    total = "exact"


class OcrGraded(_OcrBase):
    """A score that still tells images apart where none is legible yet, and that punishes extra glyphs."""

    name = "ocr_graded"
    total = "graded"
    components = ("edit", "exact", "graded")


class OcrJudge(_OcrBase):
    """Exact match by a network that no reward trains against; for evaluation."""

    name = "ocr_judge"
    config = EN_PPOCR_V4
    total = "exact"


def ocr() -> OcrReward:
    return OcrReward()


def ocr_exact() -> OcrExact:
    return OcrExact()


def ocr_graded() -> OcrGraded:
    return OcrGraded()


def ocr_judge() -> OcrJudge:
    return OcrJudge()
