"""A detector for photographs: any object-detection model that the `transformers` library can load.

The heavy libraries are imported when a detector is created, not with this module; scoring does not change their
global state. Colours come from a pluggable namer; the default, a palette, stands in for GenEval's CLIP.
Invariant: two detectors of one version give the same detections (tests/unit/test_transformers_detector.py).
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from spotlight.compute.rewards.geneval.color_naming import GENEVAL_PALETTE, ColorNamer, PaletteNamer
from spotlight.compute.rewards.geneval.detection import Box, Detection, Thresholds
from spotlight.compute.rewards.protocol import Image
from spotlight.core.errors import EnvironmentProblem, WeightsError

LEAST_CONFIDENCE = 0.05
_SAME_NAMES: Mapping[str, str] = MappingProxyType({})


class TransformersDetector:
    """Detections of a pretrained model; `class_names` maps its labels to the prompts' labels where they differ."""

    def __init__(
        self,
        source: str | Path,
        *,
        device: str = "cpu",
        batch_size: int = 8,
        thresholds: Thresholds | None = None,
        namer: ColorNamer | None = None,
        class_names: Mapping[str, str] = _SAME_NAMES,
    ) -> None:
        self._processor, self._model = _loaded(source, device)
        self._batch_size = batch_size
        self._thresholds = thresholds or Thresholds()
        self._namer = namer or PaletteNamer(GENEVAL_PALETTE)
        # Copied, because the version covers the names at this time.
        self._class_names = dict(class_names)
        settings = (self._thresholds, self._namer.version, sorted(self._class_names.items()))
        self._version = f"transformers-detector-1-{_digest(self._processor, self._model, settings)}"

    @property
    def version(self) -> str:
        return self._version

    @property
    def classes(self) -> frozenset[str]:
        return frozenset(self._named(label) for label in self._model.config.id2label)

    @property
    def thresholds(self) -> Thresholds:
        return self._thresholds

    def detect(self, images: Sequence[Image]) -> list[tuple[Detection, ...]]:
        results: list[tuple[Detection, ...]] = []
        for start in range(0, len(images), self._batch_size):
            results.extend(self._batch(images[start : start + self._batch_size]))
        return results

    def _batch(self, images: Sequence[Image]) -> Iterator[tuple[Detection, ...]]:
        import torch

        inputs = self._processor(images=list(images), return_tensors="pt").to(self._model.device)
        with torch.inference_mode():
            outputs = self._model(**inputs)
        found = self._processor.post_process_object_detection(
            outputs, threshold=LEAST_CONFIDENCE, target_sizes=[image.shape[:2] for image in images]
        )
        for image, result in zip(images, found, strict=True):
            rows = zip(result["labels"], result["scores"], result["boxes"], strict=True)
            yield tuple(self._detection(image, int(k), float(p), box.tolist()) for k, p, box in rows)

    def _named(self, label: int) -> str:
        name = str(self._model.config.id2label[label])
        return self._class_names.get(name, name)

    def _detection(self, image: Image, label: int, confidence: float, corners: Sequence[float]) -> Detection:
        height, width = image.shape[:2]
        left, right = max(0, math.floor(corners[0])), min(width, math.ceil(corners[2]))
        top, bottom = max(0, math.floor(corners[1])), min(height, math.ceil(corners[3]))
        visible = left < right and top < bottom
        return Detection(
            class_name=self._named(label),
            confidence=confidence,
            box=Box(*corners),
            colors=self._namer(image[top:bottom, left:right]) if visible else {},
        )


def _loaded(source: str | Path, device: str) -> tuple[Any, Any]:
    """Load the image processor, in its PIL form, which needs no further package, and the model."""
    looks_like_path = isinstance(source, Path) or source.startswith((".", "/", "~"))
    if looks_like_path and not Path(source).expanduser().is_dir():
        raise WeightsError(
            f"The detector's folder '{source}' does not exist, so no model can be loaded from it; "
            "pass the folder that holds the model's config.json."
        )
    try:
        import torch
        from transformers import AutoImageProcessor, AutoModelForObjectDetection
    except ImportError as error:
        raise EnvironmentProblem(
            f"The package '{error.name}' is not installed, but a detector for photographs needs it; "
            f"run: pip install {error.name}."
        ) from error
    name = str(Path(source).expanduser()) if looks_like_path else str(source)
    processors: Any = AutoImageProcessor
    try:
        processor = processors.from_pretrained(name, backend="pil")
        model = AutoModelForObjectDetection.from_pretrained(name, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise WeightsError(
            f"No object-detection model could be loaded from '{source}': its configuration, image processor or "
            "weights are missing or unreadable; pass a folder or hub name that has all three."
        ) from error
    return processor, model.to(device).eval()


def _digest(processor: Any, model: Any, settings: tuple[object, ...]) -> str:
    """Digest of everything that affects detections: settings, processor, labels and weights."""
    hasher = hashlib.blake2b(digest_size=8)
    hasher.update(repr(settings).encode())
    hasher.update(processor.to_json_string().encode())
    hasher.update(repr(sorted(model.config.id2label.items())).encode())
    for name, tensor in sorted(model.state_dict().items()):
        hasher.update(name.encode())
        hasher.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return hasher.hexdigest()
