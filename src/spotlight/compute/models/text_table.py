"""Text encoders without weights: one-hot tokens beside one-hot positions.

The transformer's own text projection turns these into learned embeddings, so a tiny family needs no language model.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from spotlight.compute.models.adapter import Conditioning
from spotlight.core.errors import PromptError, suggestion
from spotlight.core.types import Prompt

SHOWN_LETTERS = 60


@dataclass(frozen=True)
class TextTable:
    """`tokenise` splits a prompt into entries of `tokens`; at most `longest` of them are taken, padded to `width`."""

    tokens: tuple[str, ...]
    width: int
    longest: int
    tokenise: Callable[[Prompt], list[str]]

    def __post_init__(self) -> None:
        if not 1 <= self.longest <= self.width:
            raise ValueError(
                f"a table of width {self.width} was to take {self.longest} tokens, which it has no positions for; "
                f"choose 1 to {self.width}."
            )

    @property
    def dimension(self) -> int:
        return len(self.tokens) + 1 + self.width

    def encode(self, prompt: Prompt) -> Conditioning:
        parts = self.tokenise(prompt)
        shown = repr(prompt.text if len(prompt.text) <= SHOWN_LETTERS else f"{prompt.text[:SHOWN_LETTERS]}...")
        if not parts:
            raise PromptError(f"the prompt {shown} has 0 tokens, so there is nothing to draw; write one.")
        if len(parts) > self.longest:
            raise PromptError(
                f"the prompt {shown} has {len(parts)} tokens but this model takes 1 to {self.longest}, because it was "
                "pretrained on none longer; shorten it."
            )
        for part in parts:
            if part not in self.tokens:
                raise PromptError(
                    f"the prompt {shown} contains {part!r}, which this model's encoder lacks; "
                    f"{suggestion(part, self.tokens)}"
                )
        return self._one_hot([self.tokens.index(part) for part in parts])

    def null(self) -> Conditioning:
        """What the model saw when the caption was dropped in pretraining."""
        return self._one_hot([len(self.tokens)])

    def _one_hot(self, ids: list[int]) -> Conditioning:
        embeds_TD = torch.zeros(len(ids), self.dimension)
        for position, token in enumerate(ids):
            embeds_TD[position, token] = 1.0
            embeds_TD[position, len(self.tokens) + 1 + position] = 1.0
        return Conditioning(embeds_TD)
