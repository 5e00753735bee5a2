"""The process that encodes a run's prompts: loads the text half of a model, writes one file per prompt, and ends.

    python -m spotlight.compute.models.encoder < job.json

It prints a line per prompt, `done/all`, then ends, which releases the text encoders. With `check` it loads the
tokenizers only, and prints the problem with each prompt as JSON.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers

from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.components import load, load_text_pipeline, text_pipeline
from spotlight.compute.models.config import ModelConfig
from spotlight.compute.models.embeddings import EmbeddingFolder
from spotlight.compute.models.families import usable_device
from spotlight.compute.models.family_registry import FAMILIES, Family
from spotlight.compute.models.random_weights import random_text, random_tokenizers
from spotlight.compute.models.sources import Source, SourceKind, resolve
from spotlight.compute.models.text_encoding import TextHalf, write_conditioning
from spotlight.core.errors import SpotlightError, describe


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts to encode or to check."""

    model: dict[str, Any]
    """Section `model` of the run's settings."""
    device: str
    folder: str
    texts: tuple[str, ...]
    check: bool = False


def work(job: Job) -> None:
    model = ModelConfig.model_validate(job.model)
    source, device = resolve(model.name), usable_device("cpu" if job.check else job.device)
    family = FAMILIES[source.family]
    facts = facts_of(model.name)
    dtype: torch.dtype = getattr(torch, facts.precision(model))

    def loaded() -> Any:
        return _tokenizers(source, family) if job.check else _text_half(source, family, device, dtype)

    text_half = TextHalf(family, loaded, device, model.max_text_tokens)
    if job.check:
        _print(json.dumps([text_half.problem_with(text) for text in job.texts]))
        return
    folder = EmbeddingFolder.of(Path(job.folder), facts, model)
    folder.path.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(job.texts, 1):
        write_conditioning(folder.file(text), text_half.encode(text))
        _print(f"{number}/{len(job.texts)}")


def _text_half(source: Source, family: Family, device: torch.device, dtype: torch.dtype) -> Any:
    if source.kind is SourceKind.RANDOM:
        return random_text(family, device, dtype)
    return load_text_pipeline(family, source.location, dtype)


def _tokenizers(source: Source, family: Family) -> Any:
    if source.kind is SourceKind.RANDOM:
        return text_pipeline(family, random_tokenizers(family))
    parts: dict[str, Any] = dict.fromkeys(family.text)
    for folder, class_name in family.text.items():
        if folder.startswith("tokenizer"):
            parts[folder] = load(getattr(transformers, class_name), source.location, folder)
    return text_pipeline(family, parts)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    # Output of libraries goes to standard error, so that every line of standard output is this module's.
    own = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(own, "w")
    try:
        work(msgspec.json.decode(sys.stdin.buffer.read(), type=Job))
    except SpotlightError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    except torch.OutOfMemoryError as error:
        sys.stderr.write(f"the text encoder does not fit the device ({describe(error)})\n")
        sys.exit(3)


if __name__ == "__main__":
    main()
