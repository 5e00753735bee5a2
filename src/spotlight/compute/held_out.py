"""What held-out pictures say: figures with their confidence interval, and the grid to look at; free of torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image as PilImage

from spotlight.compute.rewards.protocol import Floats, Image, Scores
from spotlight.core.types import Prompt

EVALUATION_SEED = 20_000
"""Run seed of evaluation noise: the same pictures-to-be for every checkpoint of every run."""

Z_95 = 1.96


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Images in prompt order, and the scores of each reward in the order asked for."""

    prompts: tuple[Prompt, ...]
    images: list[Image]
    scores: tuple[Scores, ...]

    def estimate(self, reward: int = 0, component: str | None = None) -> Estimate:
        scores = self.scores[reward]
        return estimate(scores.total if component is None else scores.components[component])

    def figures(self) -> dict[str, Estimate]:
        """Everything worth printing: the reward, its components, GenEval's tasks, and the second judge if asked."""
        figures = {"reward": self.estimate(0)}
        figures |= {name: estimate(values) for name, values in self.scores[0].components.items()}
        strict = next((s.components["strict"] for s in self.scores if "strict" in s.components), None)
        if strict is not None and all(prompt.scene is not None for prompt in self.prompts):
            tasks = self._by_task(strict)
            figures |= tasks
            figures["geneval"] = _mean(tasks)
        if len(self.scores) > 1:
            figures["judge"] = self.estimate(1)
        return figures

    @property
    def strict(self) -> float | None:
        """The pass-or-fail score of the first reward: GenEval's overall or exact match; None where it has neither."""
        figures = replace(self, scores=self.scores[:1]).figures()
        return next((figures[name].value for name in ("geneval", "exact") if name in figures), None)

    def _by_task(self, values: Floats) -> dict[str, Estimate]:
        tags = np.array([prompt.scene.tag if prompt.scene else "" for prompt in self.prompts])
        return {str(tag): estimate(values[tags == tag]) for tag in dict.fromkeys(tags)}


def estimate(values: Floats) -> Estimate:
    """By the normal approximation; pass-or-fail scores by Wilson's, which stays honest where all pass or none."""
    count, mean = len(values), float(values.mean())
    if np.isin(values, (0.0, 1.0)).all():
        centre = (mean + Z_95**2 / (2 * count)) / (1 + Z_95**2 / count)
        half = Z_95 * np.sqrt(mean * (1 - mean) / count + (Z_95 / (2 * count)) ** 2) / (1 + Z_95**2 / count)
        return Estimate(mean, min(mean, float(centre - half)), max(mean, float(centre + half)))
    half = Z_95 * float(values.std()) / math.sqrt(max(1, count - 1))
    return Estimate(mean, mean - half, mean + half)


def _mean(estimates: Mapping[str, Estimate]) -> Estimate:
    """The mean of independent means, each counted once however many samples it has; errors add in quadrature."""
    parts = list(estimates.values())
    value = float(np.mean([part.value for part in parts]))
    below = float(np.sqrt(sum((part.value - part.low) ** 2 for part in parts))) / len(parts)
    above = float(np.sqrt(sum((part.high - part.value) ** 2 for part in parts))) / len(parts)
    return Estimate(value, value - below, value + above)


def picture_grid(images: Sequence[Image], columns: int, scale: int = 2) -> PilImage.Image:
    """Images in rows with a thin white frame, enlarged without smoothing so that pixels stay visible."""
    height, width, _ = images[0].shape
    rows = -(-len(images) // columns)
    sheet = np.full((rows * (height + 2) + 2, columns * (width + 2) + 2, 3), 255, np.uint8)
    for index, image in enumerate(images):
        y, x = 2 + (index // columns) * (height + 2), 2 + (index % columns) * (width + 2)
        sheet[y : y + height, x : x + width] = image
    return PilImage.fromarray(sheet).resize(
        (sheet.shape[1] * scale, sheet.shape[0] * scale), PilImage.Resampling.NEAREST
    )
