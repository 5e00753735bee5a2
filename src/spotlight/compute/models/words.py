"""`words` and `words-large`: a picture of a given word, spelt by a character table."""

from spotlight.compute.data import words as data
from spotlight.compute.models.pixels import PixelSpec
from spotlight.compute.models.text_table import TextTable
from spotlight.core.errors import PromptError
from spotlight.core.types import Prompt

TEXT_WIDTH = 12


def letters_of(prompt: Prompt) -> list[str]:
    """The quoted word, letter by letter."""
    parts = prompt.text.split('"')
    if len(parts) != 3 or not parts[1]:
        raise PromptError(
            f"the prompt {prompt.text!r} has no word between two double quotes, which is all this model can draw; "
            'write it like: the word "river".'
        )
    return list(parts[1])


TEXT = TextTable(
    tokens=tuple("abcdefghijklmnopqrstuvwxyz"), width=TEXT_WIDTH, longest=data.MAX_LETTERS, tokenise=letters_of
)
WORDS = PixelSpec(family="words", size=data.SIZE, patch=8, layers=4, head_dim=14, rope_axes=(2, 6, 6), text=TEXT)
WORDS_LARGE = PixelSpec(
    family="words-large", size=data.SIZE, patch=4, layers=6, head_dim=16, rope_axes=(4, 6, 6), text=TEXT
)
