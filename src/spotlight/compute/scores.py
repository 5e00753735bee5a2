"""Figures of held-out images with their confidence intervals, and the image grid; free of torch.

An interval is about prompts outside the set. Images of one prompt resemble each other, so n images count as n over the
design effect independent ones. The design effect is the variance of the mean measured prompt by prompt (a jackknife
that leaves out one prompt at a time) over that of n independent images; it is 1 where every prompt has one image. A
paired comparison of two checkpoints on the same prompts and seeds is more precise than these intervals.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image as PilImage

from spotlight.compute.rewards.protocol import JUDGE, TOTAL, Floats, Image, Scores
from spotlight.core.types import Prompt, PromptId

EVALUATION_SEED = 20_000
"""Run seed of evaluation noise: every checkpoint of every run starts from the same noise."""

Z_95 = 1.96


@dataclass(frozen=True)
class Estimate:
    """A mean over images and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Images in prompt order, and the scores of each reward in the requested order."""

    prompts: tuple[Prompt, ...]
    images: list[Image]
    scores: tuple[Scores, ...]

    def estimate(self, reward: int = 0, component: str | None = None) -> Estimate:
        scores = self.scores[reward]
        return estimate(scores.total if component is None else scores.components[component], self._ids)

    def figures(self) -> dict[str, Estimate]:
        """The reward, its components, GenEval's tasks, and the second judge if there is one."""
        figures = {TOTAL: self.estimate(0)}
        figures |= {name: self.estimate(0, name) for name in self.scores[0].components}
        strict = next((s.components["strict"] for s in self.scores if "strict" in s.components), None)
        if strict is not None and all(prompt.scene is not None for prompt in self.prompts):
            tasks = self._by_task(strict)
            figures |= tasks
            figures["geneval"] = _mean(tasks)
        if len(self.scores) > 1:
            figures[JUDGE] = self.estimate(1)
        return figures

    @property
    def strict(self) -> float | None:
        """Pass-or-fail score of the first reward: GenEval's overall or exact match; None where it has neither."""
        figures = replace(self, scores=self.scores[:1]).figures()
        return next((figures[name].value for name in ("geneval", "exact") if name in figures), None)

    @property
    def _ids(self) -> list[PromptId]:
        return [prompt.id for prompt in self.prompts]

    def _by_task(self, values: Floats) -> dict[str, Estimate]:
        tags = np.array([prompt.scene.tag if prompt.scene else "" for prompt in self.prompts])
        ids = np.array(self._ids)
        return {str(tag): estimate(values[tags == tag], ids[tags == tag].tolist()) for tag in dict.fromkeys(tags)}


def estimate(values: Floats, prompts: Sequence[Hashable] | None = None) -> Estimate:
    """Return the mean of `values` and its interval clustered by `prompts` (one per value; None: all differ).

    Graded scores use the normal approximation. Pass-or-fail scores use Wilson's interval, which does not shrink to a
    point where all pass or none.
    """
    count, mean = len(values), float(values.mean())
    effective, least = _effective_counts(values, prompts)
    if np.isin(values, (0.0, 1.0)).all():
        return _wilson(mean, max(effective, least))
    half = Z_95 * float(values.std()) / math.sqrt(max(1, count - 1)) * math.sqrt(count / effective)
    return Estimate(mean, mean - half, mean + half)


def _wilson(mean: float, count: float) -> Estimate:
    centre = (mean + Z_95**2 / (2 * count)) / (1 + Z_95**2 / count)
    half = Z_95 * np.sqrt(mean * (1 - mean) / count + (Z_95 / (2 * count)) ** 2) / (1 + Z_95**2 / count)
    return Estimate(mean, min(mean, float(centre - half)), max(mean, float(centre + half)))


def _effective_counts(values: Floats, prompts: Sequence[Hashable] | None) -> tuple[float, float]:
    """Return the effective number of independent images, and its least value: all images of a prompt are equal.

    The first is the count over the design effect (1 or more), times a correction for few prompts: the squared ratio of
    Student's quantiles for independent images and for prompts (Korn and Graubard). Its degrees of freedom are the
    equivalent number of prompts of equal size, less one. Where the design effect cannot be measured, because all
    values are equal or all belong to one prompt, both are the least value.
    """
    count = len(values)
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts or ()))}
    if prompts is None or len(numbers) == count:
        return float(count), float(count)
    number_B = np.array([numbers[prompt] for prompt in prompts])
    sizes = np.bincount(number_B)
    least = count**2 / float((sizes**2).sum())
    variance = float(values.var()) / (count - 1)
    if len(sizes) == 1 or variance == 0:
        return least, least
    left_out = np.bincount(number_B, weights=values - values.mean()) / (count - sizes)
    jackknife = (1 - 1 / len(sizes)) * float((left_out**2).sum())
    correction = (_student_95(count - 1) / _student_95(max(least - 1, 1.0))) ** 2
    return count / max(1.0, jackknife / variance) * correction, least


def _student_95(degrees: float) -> float:
    from scipy.special import stdtrit  # takes 0.4 s to import, and few evaluations repeat a prompt

    return float(stdtrit(degrees, 0.975))


def _mean(estimates: Mapping[str, Estimate]) -> Estimate:
    """Average means over disjoint prompts with equal weights; errors add in quadrature."""
    parts = list(estimates.values())
    value = float(np.mean([part.value for part in parts]))
    below = float(np.sqrt(sum((part.value - part.low) ** 2 for part in parts))) / len(parts)
    above = float(np.sqrt(sum((part.high - part.value) ** 2 for part in parts))) / len(parts)
    return Estimate(value, value - below, value + above)


def picture_grid(images: Sequence[Image], columns: int, scale: int = 2) -> PilImage.Image:
    """Arrange images in rows with a thin white frame, enlarged without smoothing so that pixels stay visible."""
    height, width, _ = images[0].shape
    rows = -(-len(images) // columns)
    sheet = np.full((rows * (height + 2) + 2, columns * (width + 2) + 2, 3), 255, np.uint8)
    for index, image in enumerate(images):
        y, x = 2 + (index // columns) * (height + 2), 2 + (index % columns) * (width + 2)
        sheet[y : y + height, x : x + width] = image
    return PilImage.fromarray(sheet).resize(
        (sheet.shape[1] * scale, sheet.shape[0] * scale), PilImage.Resampling.NEAREST
    )
