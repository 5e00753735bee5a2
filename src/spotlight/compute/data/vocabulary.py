"""The closed token set of a tiny family's text encoder; free of torch.

The encoder (`compute/models/text_table.py`) and the checks before a run share this class, so a prompt that passes here
can be encoded (tests/unit/test_text_table.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

from spotlight.core.errors import PromptError, suggestion
from spotlight.core.types import Prompt

SHOWN_LETTERS = 60


@dataclass(frozen=True)
class Vocabulary:
    """`tokenise` splits a prompt into entries of `tokens`; at most `longest` of them are taken, padded to `width`."""

    tokens: tuple[str, ...]
    width: int
    longest: int
    tokenise: Callable[[Prompt], list[str]]

    def __post_init__(self) -> None:
        if not 1 <= self.longest <= self.width:
            raise ValueError(
                f"a vocabulary of width {self.width} cannot take {self.longest} tokens, because it has no positions "
                f"for them; choose 1 to {self.width}."
            )

    def token_ids(self, prompt: Prompt) -> list[int]:
        """Return the indices of the prompt's tokens in `tokens`; raises PromptError if it cannot be encoded."""
        parts = self.tokenise(prompt)
        shown = shortened(prompt)
        if not parts:
            raise PromptError(f"the prompt {shown} has 0 tokens, so there is nothing to draw; write one.")
        if len(parts) > self.longest:
            raise PromptError(
                f"the prompt {shown} has {len(parts)} tokens but this model takes 1 to {self.longest}, the longest in "
                "its pretraining; shorten it."
            )
        for part in parts:
            if part not in self.tokens:
                raise PromptError(
                    f"the prompt {shown} contains {part!r}, which this model's encoder lacks; "
                    f"{suggestion(part, self.tokens)}"
                )
        return [self.tokens.index(part) for part in parts]


def shortened(prompt: Prompt) -> str:
    """Quote the prompt's text, cut after SHOWN_LETTERS characters."""
    return repr(prompt.text if len(prompt.text) <= SHOWN_LETTERS else f"{prompt.text[:SHOWN_LETTERS]}...")
