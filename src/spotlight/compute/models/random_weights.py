"""Real families with random weights: tiny checkpoints for a laptop and models of the released size for speed.

    random-tiny:FAMILY    a folder in diffusers layout (assets/random/tiny/FAMILY.json)
    random:FAMILY         on the device, without a file (assets/random/full/FAMILY.json)

Every component is there, with its class, its tokenizer's conventions and its VAE's true scale. Tokenizers are small in
both. The same seed gives the same weights on the same kind of device, whatever was drawn before; nothing is fetched.
"""

import copy
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from spotlight.assets import asset
from spotlight.compute.models.components import text_pipeline
from spotlight.compute.models.family_registry import Family, family_named
from spotlight.compute.models.pipeline_adapter import PipelineAdapter
from spotlight.compute.models.random_tokenizers import random_tokenizers


def write_tiny(family: Family, folder: Path, seed: int = 0) -> Path:
    """Write a checkpoint that the family's own pipeline and `from_pretrained` of its adapter load; return `folder`."""
    settings = _settings(family, "tiny")
    with _seeded(seed, torch.device("cpu"), torch.float32):
        parts = {**_picture_parts(family, settings), **_text_parts(family, settings)}
    pipeline: Any = getattr(diffusers, family.pipeline)
    pipeline(**parts).save_pretrained(folder)
    return folder


def random_full(
    family: Family, device: torch.device, dtype: torch.dtype, seed: int = 0, max_text_tokens: int | None = None
) -> PipelineAdapter:
    """The family's released size with random weights, created on the device; text encoders at the first `encode`."""
    with _seeded(seed, device, dtype):
        parts = _picture_parts(family, _settings(family, "full"))
    adapter: PipelineAdapter = family.load_adapter_class()(
        **parts,
        load_text=lambda: random_text(family, device, dtype, seed),
        device=device,
        max_text_tokens=max_text_tokens,
    )
    return adapter


def random_text(family: Family, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Any:
    """The text half of the released size: small tokenizers, encoders with random weights."""
    with _seeded(seed, device, dtype):
        return text_pipeline(family, _text_parts(family, _settings(family, "full")))


def _settings(family: Family, scale: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(asset(f"random/{scale}/{family.name}.json").read_text())
    return found


@contextmanager
def _seeded(seed: int, device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Create modules on the device in their dtype: a copy in fp32 would not fit beside a second process."""
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(seed)
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def _picture_parts(family: Family, settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "transformer": getattr(diffusers, family.transformer)(**settings["transformer"]).eval(),
        "vae": getattr(diffusers, family.vae)(**settings["vae"]),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(**settings["scheduler"]),
    }


def _text_parts(family: Family, settings: dict[str, Any]) -> dict[str, Any]:
    """Tokenizers, and encoders of their vocabularies: `text_encoder_2` belongs to `tokenizer_2`."""
    parts = random_tokenizers(family)
    for folder, name in family.text.items():
        if folder.startswith("text_encoder"):
            tokenizer = parts[folder.replace("text_encoder", "tokenizer")]
            config = copy.deepcopy(settings[folder])
            # Qwen's vocabulary is a setting of the text half of a vision-language model.
            text = config.get("text_config", config)
            text.setdefault("vocab_size", len(tokenizer))
            for token in ("eos_token_id", "bos_token_id", "pad_token_id"):
                text.setdefault(token, getattr(tokenizer, token))
            encoder: Any = getattr(transformers, name)
            parts[folder] = encoder(encoder.config_class(**config)).eval()
    return parts


if __name__ == "__main__":
    write_tiny(family_named(sys.argv[1]), Path(sys.argv[2]))
