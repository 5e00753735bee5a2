"""GenEval as a reward: a detector's findings scored by GenEval's rule, graded to train on, strict to report."""

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from spotlight.compute.rewards.geneval import rule
from spotlight.compute.rewards.geneval.detection import Detector
from spotlight.compute.rewards.geneval.scene_detector import SceneDetector
from spotlight.compute.rewards.protocol import Image, Scores
from spotlight.core.errors import PromptError, RewardError, suggestion
from spotlight.core.types import Prompt, SceneSpec

PROTOCOL_VERSION = "1"


class Total(StrEnum):
    """Which of the two scores is trained on."""

    GRADED = "graded"
    STRICT = "strict"


class GenEvalReward:
    """Scores pictures in [0, 1]; both scores are reported as components."""

    def __init__(self, detector: Detector, *, total: Total = Total.GRADED, name: str = "geneval") -> None:
        self.name = name
        self.version = f"geneval-{PROTOCOL_VERSION}-{total}-{detector.version}"
        self._detector = detector
        self._total = total

    def problem_with(self, prompt: Prompt) -> str | None:
        """A prompt needs a scene of objects that the detector can find."""
        try:
            self._scene_of(prompt)
        except PromptError as error:
            return str(error)
        return None

    def score(self, images: Sequence[Image], prompts: Sequence[Prompt]) -> Scores:
        if len(images) != len(prompts):
            raise RewardError(
                f"The reward '{self.name}' got {len(images)} images for {len(prompts)} prompts, but scores each image "
                "by its own prompt; pass one prompt for each image."
            )
        wanted = [self._scene_of(prompt) for prompt in prompts]
        found = self._detector.detect(images)
        limits = self._detector.thresholds
        pairs = list(zip(found, wanted, strict=True))
        components = {
            Total.GRADED.value: np.array([rule.graded(d, s, limits) for d, s in pairs], dtype=np.float64),
            Total.STRICT.value: np.array([rule.strict(d, s, limits) for d, s in pairs], dtype=np.float64),
        }
        return Scores(total=components[self._total.value], components=components)

    def _scene_of(self, prompt: Prompt) -> SceneSpec:
        if prompt.scene is None:
            raise PromptError(
                f"The prompt '{prompt.text}' has no scene metadata, so GenEval cannot score its pictures; "
                "use prompts with 'tag' and 'include', or another reward."
            )
        known = self._detector.classes
        for clause in (*prompt.scene.include, *prompt.scene.exclude):
            # Otherwise every picture would silently score 0, or none would ever exceed the bound.
            if clause.class_name not in known:
                raise PromptError(
                    f"The prompt '{prompt.text}' names '{clause.class_name}', which the detector of the "
                    f"reward '{self.name}' cannot find: {suggestion(clause.class_name, known)}"
                )
        rule.check(prompt.scene)
        return prompt.scene


def geneval(*, detector: str = "") -> GenEvalReward:
    """Graded match of a picture with the prompt's objects, counts, colours, positions, 0 to 1; to train on.

    `detector` is a folder or hub id of a detector in `transformers`; without it, pictures are synthetic scenes.
    """
    return GenEvalReward(_detector(detector))


def geneval_strict(*, detector: str = "") -> GenEvalReward:
    """GenEval's own pass or fail, 1 or 0; for evaluation. Its option is that of `geneval`."""
    return GenEvalReward(_detector(detector), total=Total.STRICT, name="geneval_strict")


def _detector(source: str) -> Detector:
    if not source:
        return SceneDetector()
    # Imported on demand: transformers takes seconds.
    from spotlight.compute.rewards.geneval.transformers_detector import TransformersDetector

    return TransformersDetector(source)
