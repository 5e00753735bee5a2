"""`words` and `words-large`: a picture of a given word, spelt by a character table."""

from spotlight.compute.data import words as data
from spotlight.compute.models.pixels import PixelSpec
from spotlight.compute.models.text_table import TextTable

TEXT = TextTable.of(data.VOCABULARY)
WORDS = PixelSpec(family="words", size=data.SIZE, patch=8, layers=4, head_dim=14, rope_axes=(2, 6, 6), text=TEXT)
WORDS_LARGE = PixelSpec(
    family="words-large", size=data.SIZE, patch=4, layers=6, head_dim=16, rope_axes=(4, 6, 6), text=TEXT
)
