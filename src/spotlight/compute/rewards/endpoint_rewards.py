"""Rewards by a vision-language model behind an endpoint: `ocr_endpoint` reads text, `rubric_endpoint` follows a rubric.

Answers are JSON objects and are parsed strictly: a refusal or a remark in prose must not become a score of 0.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated, TypeVar

import msgspec
import numpy as np

from spotlight.compute.rewards.answers import paired
from spotlight.compute.rewards.endpoint import TIMEOUT_S, EndpointConfig, VisionEndpoint
from spotlight.compute.rewards.ocr import text
from spotlight.compute.rewards.protocol import Image, Scores
from spotlight.core.errors import ConfigError
from spotlight.core.types import Prompt

LARGEST = 10
READ = (
    "Transcribe all text that is visible in this picture, exactly as written, in reading order. Answer with one JSON "
    'object and nothing else: {"text": "..."}. If the picture shows no text, answer {"text": ""}.'
)
GRADE = (
    "You grade a picture that was made from a prompt. Rubric:\n{rubric}\n\nThe prompt is the text between the lines.\n"
    "----\n{prompt}\n----\nAnswer with one JSON object and nothing else: "
    '{{"score": n}}, where n is a number from 0 (worst) to 10 (best) by the rubric.'
)


class _Reading(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class _Grade(msgspec.Struct, forbid_unknown_fields=True):
    score: Annotated[float, msgspec.Meta(ge=0, le=LARGEST)]


Parsed = TypeVar("Parsed")


def _parsed(answer: str, kind: type[Parsed]) -> Parsed:
    """The only JSON object of an answer, which models like to put into a Markdown code block."""
    content = answer.strip()
    if content.startswith("```") and content.endswith("```") and "\n" in content:
        content = content.partition("\n")[2].removesuffix("```")
    return msgspec.json.decode(content, type=kind)


class OcrEndpoint:
    """Edit similarity of the prompt's target and the text that the endpoint's model reads, 0 to 1."""

    name = "ocr_endpoint"

    def __init__(self, config: EndpointConfig) -> None:
        self._endpoint = VisionEndpoint(config, lambda answer: _parsed(answer, _Reading).text)
        self.version = _version(self.name, config, READ, str(text.SCORING_VERSION))

    def problem_with(self, prompt: Prompt) -> str | None:
        """A prompt needs a target text."""
        return text.target_problem(prompt)

    def score(self, images: Sequence[Image], prompts: Sequence[Prompt]) -> Scores:
        paired(images, prompts)
        targets = [text.target_of(prompt) for prompt in prompts]
        pairs = list(zip(self._endpoint.answers([READ] * len(images), images), targets, strict=True))
        edit = np.array([text.edit_similarity(read, target) for read, target in pairs], dtype=np.float64)
        exact = np.array([text.exact_match(read, target) for read, target in pairs], dtype=np.float64)
        return Scores(total=edit, components={"edit": edit, "exact": exact})


class RubricEndpoint:
    """Grade of picture and prompt by a rubric, from the endpoint's model, 0 to 1."""

    name = "rubric_endpoint"

    def __init__(self, config: EndpointConfig, rubric: str) -> None:
        if not rubric.strip():
            raise ConfigError("the rubric is empty, so there is nothing to grade by; write what a good picture shows.")
        self._rubric = rubric
        self._endpoint = VisionEndpoint(config, lambda answer: _parsed(answer, _Grade).score)
        self.version = _version(self.name, config, GRADE, rubric)

    def score(self, images: Sequence[Image], prompts: Sequence[Prompt]) -> Scores:
        paired(images, prompts)
        questions = [GRADE.format(rubric=self._rubric, prompt=prompt.text) for prompt in prompts]
        return Scores(total=np.array(self._endpoint.answers(questions, images), dtype=np.float64) / LARGEST)


def _version(name: str, config: EndpointConfig, *texts: str) -> str:
    """Covers what is sent and where; weights behind an endpoint may change without a trace."""
    content = msgspec.json.encode([config.url, *texts])
    return f"{name}-1-{config.model}-{hashlib.blake2b(content, digest_size=6).hexdigest()}"


def ocr_endpoint(*, url: str, model: str, key_variable: str = "", timeout_s: float = TIMEOUT_S) -> OcrEndpoint:
    """Edit similarity of the target and the text that a vision-language model reads, 0 to 1, over HTTP."""
    return OcrEndpoint(EndpointConfig(url=url, model=model, key_variable=key_variable, timeout_s=timeout_s))


def rubric_endpoint(
    *, url: str, model: str, rubric: str, key_variable: str = "", timeout_s: float = TIMEOUT_S
) -> RubricEndpoint:
    """Grade by a rubric that a vision-language model gives, 0 to 1, over HTTP."""
    config = EndpointConfig(url=url, model=model, key_variable=key_variable, timeout_s=timeout_s)
    return RubricEndpoint(config, rubric)
