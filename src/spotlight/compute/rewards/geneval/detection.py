"""Detections of a picture, and the protocol of detectors.

GenEval's rule (`rule.py`) uses only these values, so it works with any detector. Confidences of two detectors are not
comparable, so each detector declares its own thresholds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from spotlight.compute.rewards.protocol import Image

UNKNOWN = "unknown"
"""Class of a visible object that is none of the detector's classes; no prompt can name it."""

COUNTING_TAG = "counting"


@dataclass(frozen=True)
class Box:
    """Corners in pixels; x to the right, y downward."""

    x0: float
    y0: float
    x1: float
    y1: float

    @property
    def center(self) -> tuple[float, float]:
        return (self.x0 + self.x1) / 2, (self.y0 + self.y1) / 2

    @property
    def extent(self) -> tuple[float, float]:
        return abs(self.x1 - self.x0), abs(self.y1 - self.y0)


@dataclass(frozen=True, kw_only=True)
class Detection:
    """One object: its class, confidence, box and the probability of each colour."""

    class_name: str
    confidence: float
    box: Box
    colors: Mapping[str, float] = field(default_factory=dict)

    @property
    def color(self) -> str | None:
        """The most likely colour; None if the detector named none."""
        return max(self.colors, key=lambda name: self.colors[name]) if self.colors else None


@dataclass(frozen=True)
class Thresholds:
    """Confidence above which a detection counts as an object; the defaults are GenEval's, for Mask2Former."""

    default: float = 0.3
    counting: float = 0.9

    def of(self, tag: str) -> float:
        return self.counting if tag == COUNTING_TAG else self.default


class Detector(Protocol):
    """Finds objects in pictures; `version` changes whenever the same picture could give other detections."""

    @property
    def version(self) -> str: ...

    @property
    def classes(self) -> frozenset[str]:
        """Class names that it can find."""
        ...

    @property
    def thresholds(self) -> Thresholds: ...

    def detect(self, images: Sequence[Image]) -> list[tuple[Detection, ...]]:
        """The detections of each picture, in the order of the pictures."""
        ...
