"""`clip`: CLIP score, the cosine of the embeddings of picture and prompt.

A prompt longer than the encoder (77 tokens in the released models) is cut there, as in every published CLIP score:
what it says beyond is not scored.

Invariant (tests/unit/test_clip_rewards.py): on a CPU a score does not depend on the other pictures of its call.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from spotlight.compute.rewards.answers import paired
from spotlight.compute.rewards.clip_source import load_clip
from spotlight.compute.rewards.protocol import Floats, Image, Scores
from spotlight.core.types import Prompt

CPU_ROWS, GPU_ROWS = 1, 16
"""Pictures per forward. A batch is no faster on one core, and changes the last bits of a score."""


class ClipScore:
    """Cosine of the CLIP embeddings of picture and prompt, -1 to 1; a longer prompt is cut at the encoder's end."""

    name = "clip"

    def __init__(self, source: str, tokenizer: str = "") -> None:
        """`tokenizer` names the tokenizer's folder or hub id, for a source that has none."""
        from spotlight.compute.weights.digest import digest

        parts = load_clip(source, tokenizer)
        self._model, self._tokenizer, self._processor = parts.model, parts.tokenizer, parts.processor
        settings = self._tokenizer.backend_tokenizer.to_str() + self._processor.to_json_string()
        text = f"{digest(self._model.state_dict())} {settings}"
        self._reference = f"{self.name}-1-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
        self.version = self._reference
        self._rows = CPU_ROWS

    def use_device(self, device: str) -> None:
        """Compute on this device; the version changes with its kind, because the last bits differ."""
        self._model.to(device)
        is_cpu = self._model.device.type == "cpu"
        self._rows = CPU_ROWS if is_cpu else GPU_ROWS
        self.version = self._reference if is_cpu else f"{self._reference}-{self._model.device.type}"

    def score(self, images: Sequence[Image], prompts: Sequence[Prompt]) -> Scores:
        paired(images, prompts)
        return Scores(total=self._scaled(self._cosines(images, [prompt.text for prompt in prompts])))

    def _scaled(self, cosines: Floats) -> Floats:
        return cosines

    def _cosines(self, images: Sequence[Image], texts: Sequence[str]) -> Floats:
        """One per picture; a text that several pictures share is embedded once."""
        import torch

        if not images:
            return np.zeros(0)
        different = list(dict.fromkeys(texts))
        with torch.inference_mode():
            texts_UD = torch.cat([self._embedded_texts(rows) for rows in self._batches(different)])
            images_BD = torch.cat([self._embedded_images(rows) for rows in self._batches(images)])
            places = [different.index(text) for text in texts]
            return np.asarray((images_BD.double() * texts_UD[places].double()).sum(-1).cpu().numpy(), dtype=np.float64)

    def _batches(self, rows: Sequence[Any]) -> list[Sequence[Any]]:
        return [rows[start : start + self._rows] for start in range(0, len(rows), self._rows)]

    def _embedded_texts(self, texts: Sequence[str]) -> Any:
        # One width: a prompt then has the same embedding beside any other.
        width = self._model.config.text_config.max_position_embeddings
        tokens = self._tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=width, return_tensors="pt"
        ).to(self._model.device)
        return _normed(self._model.get_text_features(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask))

    def _embedded_images(self, images: Sequence[Image]) -> Any:
        pixels = self._processor(images=list(images), return_tensors="pt").to(self._model.device)
        return _normed(self._model.get_image_features(pixel_values=pixels.pixel_values))


def _normed(features: Any) -> Any:
    embeddings = features.pooler_output
    return embeddings / embeddings.norm(dim=-1, keepdim=True)


def clip(*, source: str) -> ClipScore:
    """CLIP score: cosine of the embeddings of picture and prompt, by the CLIP model of a folder or hub id."""
    return ClipScore(source)
