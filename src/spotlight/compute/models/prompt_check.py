"""The process that checks a run's prompts with the tokenizers of its model.

    python -m spotlight.compute.models.prompt_check < job.json

It prints the problem with each prompt as JSON. It never imports torch or diffusers, which would take most of its time.
"""

import json
import os
import sys
from typing import Any

import msgspec
import transformers

from spotlight.compute.models.component_files import load
from spotlight.compute.models.config import ModelConfig
from spotlight.compute.models.family_registry import FAMILIES, Family
from spotlight.compute.models.prompt_length import problem_with
from spotlight.compute.models.random_tokenizers import random_tokenizers
from spotlight.compute.models.sources import Source, SourceKind, resolve
from spotlight.core.errors import SpotlightError


class CheckJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts to check."""

    model: dict[str, Any]
    """Section `model` of the run's settings."""
    texts: tuple[str, ...]


def problems(job: CheckJob) -> list[str | None]:
    """The tokenizers' problem with each text."""
    model = ModelConfig.model_validate(job.model)
    source = resolve(model.name)
    family = FAMILIES[source.family]
    tokenizer = _tokenizers(source, family)[family.tokenizer]
    most = model.max_text_tokens or family.longest_prompt
    return [problem_with(family, tokenizer, text, most) for text in job.texts]


def _tokenizers(source: Source, family: Family) -> dict[str, Any]:
    """All of them: a model without one of them is refused before its weights are loaded."""
    if source.kind is SourceKind.RANDOM:
        return random_tokenizers(family)
    return {
        folder: load(getattr(transformers, class_name), source.location, folder)
        for folder, class_name in family.text.items()
        if folder.startswith("tokenizer")
    }


def claim_stdout() -> None:
    """Send the output of libraries to standard error, so that every line of standard output is this program's."""
    own = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(own, "w")


def main() -> None:
    claim_stdout()
    try:
        found = problems(msgspec.json.decode(sys.stdin.buffer.read(), type=CheckJob))
    except SpotlightError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
