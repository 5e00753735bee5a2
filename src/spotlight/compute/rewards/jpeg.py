"""`jpeg`: compressibility, a reward without a model: minus the kilobytes of a quality-95 JPEG, divided by 500."""

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image as PilImage
from PIL import features

from spotlight.compute.rewards.protocol import Image, Reward, Scores
from spotlight.core.types import Prompt

QUALITY = 95
SCALE_KB = 500.0


class JpegCompressibility:
    """Minus the size of the picture as a JPEG file of quality 95, in units of 500 kB; ignores the prompt."""

    name = "jpeg"
    version = f"jpeg-q{QUALITY}-{features.version('jpg')}"

    def score(self, images: Sequence[Image], prompts: Sequence[Prompt]) -> Scores:
        return Scores(total=np.array([-_kilobytes(image) / SCALE_KB for image in images], dtype=np.float64))


def _kilobytes(image: Image) -> float:
    buffer = io.BytesIO()
    PilImage.fromarray(image).save(buffer, format="JPEG", quality=QUALITY)
    return buffer.tell() / 1000.0


def jpeg() -> Reward:
    return JpegCompressibility()
