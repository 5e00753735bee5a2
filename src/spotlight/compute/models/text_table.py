"""Text encoders without weights: one-hot tokens beside one-hot positions.

The transformer's own text projection turns these into learned embeddings, so a tiny family needs no language model.
"""

from dataclasses import dataclass

import torch

from spotlight.compute.data.vocabulary import Vocabulary
from spotlight.compute.models.adapter import Conditioning
from spotlight.core.types import Prompt


@dataclass(frozen=True)
class TextTable(Vocabulary):
    """A vocabulary that encodes prompts as tensors."""

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "TextTable":
        return cls(vocabulary.tokens, vocabulary.width, vocabulary.longest, vocabulary.tokenise)

    @property
    def dimension(self) -> int:
        return len(self.tokens) + 1 + self.width

    def encode(self, prompt: Prompt) -> Conditioning:
        return self._one_hot(self.token_ids(prompt))

    def null(self) -> Conditioning:
        """Conditioning without a caption, as in pretraining's caption dropout."""
        return self._one_hot([len(self.tokens)])

    def _one_hot(self, ids: list[int]) -> Conditioning:
        embeds_TD = torch.zeros(len(ids), self.dimension)
        for position, token in enumerate(ids):
            embeds_TD[position, token] = 1.0
            embeds_TD[position, len(self.tokens) + 1 + position] = 1.0
        return Conditioning(embeds_TD)
