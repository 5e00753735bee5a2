"""The OCR rewards: match of the text in an image with its prompt's target text.

`ocr`, `ocr_exact` and `ocr_graded` read with the same network and differ in the score that is trained on;
`ocr_judge` reads with another network, so that a policy which exploits the first one is detected.

Invariant: totals and components are finite and in [0, 1] (tests/unit/test_ocr.py).
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from spotlight.compute.rewards.ocr import text
from spotlight.compute.rewards.ocr.detector import Reader, TextDetector
from spotlight.compute.rewards.ocr.recogniser import (
    EN_PPOCR_V4,
    PPOCR_V6_TINY,
    Reading,
    Recogniser,
    RecogniserConfig,
)
from spotlight.compute.rewards.ocr.weights import ASSETS
from spotlight.compute.rewards.protocol import Floats, Image, Scores
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
        detector = TextDetector(folder=folder)
        self._reader = Reader(detector, self._recogniser)
        tags = (self.config.weights.tag, self.config.alphabet.tag, detector.weights.tag)
        self._reference = f"{'-'.join(tags)}-s{text.SCORING_VERSION}"
        self.version = self._reference

    def use_device(self, device: str) -> None:
        """Read lines on this device; the CPU keeps onnxruntime, the reference, which is faster there than torch."""
        if device != "cpu":
            self.use_torch(device)

    def use_torch(self, device: str) -> None:
        """Read lines with torch on this device from now on; the version changes, because the last bits differ."""
        self._recogniser.use_torch(device)
        self.version = f"{self._reference}-{self._recogniser.runner}"

    def problem_with(self, prompt: Prompt) -> str | None:
        """A prompt needs a target text."""
        return text.target_problem(prompt)

    def score(self, images: Sequence[Image], prompts: Sequence[Prompt]) -> Scores:
        """Score each image against its own prompt's target."""
        if len(images) != len(prompts):
            raise RewardError(
                f"Reward '{self.name}' was given {len(images)} images and {len(prompts)} prompts, but each "
                "image is scored against its own prompt; pass one prompt per image."
            )
        for index, image in enumerate(images):
            self._check(index, image)
        targets = [text.target_of(prompt) for prompt in prompts]
        readings = self._read(images, targets)
        columns = self._columns(readings, targets)
        return Scores(total=columns[self.total], components=columns)

    def _columns(self, readings: Sequence[Reading], targets: Sequence[str]) -> dict[str, Floats]:
        read = [reading.text for reading in readings]
        edit = _column(text.edit_similarity, read, targets)
        columns = {"edit": edit, "exact": _column(text.exact_match, read, targets)}
        if "graded" in self.components:
            letters, blank = [reading.letters for reading in readings], [reading.blank for reading in readings]
            soft = text.soft_lcs(letters, blank, targets)
            columns["graded"] = _column(text.graded, edit, soft, _column(text.extra_glyphs, read, targets))
        return columns

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


def _column(rule: Callable[..., float], *values: Iterable[Any]) -> Floats:
    return np.array([rule(*row) for row in zip(*values, strict=True)], dtype=np.float64)


class OcrReward(_OcrBase):
    """Edit similarity of the text that is read and the target, 0 to 1, as in Flow-GRPO; text around it is free."""

    name = "ocr"
    total = "edit"


class OcrExact(_OcrBase):
    """1 where the image shows the target and nothing else, up to case and spaces."""

    name = "ocr_exact"
    total = "exact"


class OcrGraded(_OcrBase):
    """Half edit similarity, half soft match of the recogniser's letter probabilities, less extra glyphs; 0 to 1."""

    name = "ocr_graded"
    total = "graded"
    components = ("edit", "exact", "graded")


class OcrJudge(_OcrBase):
    """As ocr_exact, by a second recogniser that no reward trains against; for evaluation."""

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
