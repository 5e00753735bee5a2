"""The process that encodes a run's prompts: loads the text half of a model, writes one file per prompt, and ends.

    python -m spotlight.compute.models.encoder < job.json

It prints a line per prompt, `done/all`, then ends, which releases the text encoders.
"""

import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.components import load_text_pipeline
from spotlight.compute.models.config import ModelConfig
from spotlight.compute.models.embeddings import EmbeddingFolder
from spotlight.compute.models.families import usable_device
from spotlight.compute.models.family_registry import FAMILIES, Family
from spotlight.compute.models.prompt_check import claim_stdout
from spotlight.compute.models.random_weights import random_text
from spotlight.compute.models.sources import Source, SourceKind, resolve
from spotlight.compute.models.text_encoding import TextHalf, write_conditioning
from spotlight.core.errors import SpotlightError, describe


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts to encode."""

    model: dict[str, Any]
    """Section `model` of the run's settings."""
    device: str
    folder: str
    texts: tuple[str, ...]


def work(job: Job) -> None:
    model = ModelConfig.model_validate(job.model)
    source, device = resolve(model.name), usable_device(job.device)
    family = FAMILIES[source.family]
    facts = facts_of(model.name)
    dtype: torch.dtype = getattr(torch, facts.precision(model))
    text_half = TextHalf(family, lambda: _text_half(source, family, device, dtype), device, model.max_text_tokens)
    folder = EmbeddingFolder.of(Path(job.folder), facts, model)
    folder.path.mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(job.texts, 1):
        write_conditioning(folder.file(text), text_half.encode(text))
        sys.stdout.write(f"{number}/{len(job.texts)}\n")
        sys.stdout.flush()


def _text_half(source: Source, family: Family, device: torch.device, dtype: torch.dtype) -> Any:
    if source.kind is SourceKind.RANDOM:
        return random_text(family, device, dtype)
    return load_text_pipeline(family, source.location, dtype)


def main() -> None:
    claim_stdout()
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
