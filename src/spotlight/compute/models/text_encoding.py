"""The text half of a real family: tokenizers and text encoders, loaded without the transformer, released at will.

Invariant: prompts are encoded one at a time, by the pipeline's own method, and never cut off
(tests/conformance/test_families.py).
"""

import gc
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from spotlight.compute.models.adapter import Conditioning
from spotlight.compute.models.family_registry import Family
from spotlight.compute.models.prompt_length import problem_with
from spotlight.core.errors import PromptError, WeightsError


class EncodesText(ABC):
    """How one family calls its pipeline for text; implemented by its adapter."""

    facts: ClassVar[Family]

    @staticmethod
    @abstractmethod
    def encode_one(pipeline: Any, text: str, device: torch.device, most_tokens: int) -> tuple[Tensor, Tensor | None]:
        """embeds_1TD and pooled_1D of one prompt, by the pipeline's own method."""


class TextHalf:
    """Tokenizers and text encoders of one model; the first `encode` loads them."""

    def __init__(
        self,
        family: Family,
        load: Callable[[], Any] | None,
        device: torch.device,
        most_tokens: int | None = None,
    ) -> None:
        """`load` returns the family's pipeline with its text components only."""
        self.most_tokens = most_tokens or family.longest_prompt
        self._family = family
        self._encodes: type[EncodesText] = family.load_adapter_class()
        self._load = load
        self._device = device
        self._pipeline: Any = None

    @torch.no_grad()
    def encode(self, text: str) -> Conditioning:
        problem = self.problem_with(text)
        if problem is not None:
            raise PromptError(problem)
        embeds_1TD, pooled_1D = self._encodes.encode_one(self.pipeline, text, self._device, self.most_tokens)
        return Conditioning(embeds_1TD[0].cpu(), None if pooled_1D is None else pooled_1D[0].cpu())

    def problem_with(self, text: str) -> str | None:
        """Why the prompt cannot be encoded; None if it can."""
        tokenizer = getattr(self.pipeline, self._family.tokenizer)
        return problem_with(self._family, tokenizer, text, self.most_tokens)

    def release(self) -> None:
        """Free the text encoders' memory; a later `encode` loads them again."""
        self._pipeline = None
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def pipeline(self) -> Any:
        if self._pipeline is None:
            if self._load is None:
                raise WeightsError(
                    "Prompts cannot be encoded, because this adapter was built without a text encoder; pass "
                    "`load_text`, or load the model with `from_pretrained`."
                )
            pipeline = self._load()
            for name, part in pipeline.components.items():
                if isinstance(part, nn.Module) and name.startswith("text_encoder"):
                    part.to(self._device).requires_grad_(False).eval()
            self._pipeline = pipeline
        return self._pipeline


def write_conditioning(path: Path, conditioning: Conditioning) -> None:
    tensors = {"embeds": conditioning.embeds.contiguous()}
    if conditioning.pooled is not None:
        tensors["pooled"] = conditioning.pooled.contiguous()
    scratch = path.with_suffix(f".{os.getpid()}.part")
    save_file(tensors, scratch)
    os.replace(scratch, path)


def read_conditioning(path: Path) -> Conditioning:
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"the encoded prompt {path} cannot be read ({error}), and workers do not encode prompts; delete it if it "
            "exists, and resume the run, which encodes it again."
        ) from error
    return Conditioning(tensors["embeds"], tensors.get("pooled"))
